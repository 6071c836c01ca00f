import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "internals" / "mechanisms.md"
NUMBERS = [*(str(n) for n in range(1, 43)), *"ABCDEFGHIJKLMNO"]
STATUS = re.compile(r"built|partly: \S.*|not yet")


class Row(NamedTuple):
    number: str
    mechanism: str
    modules: list[str]
    tests: list[str]
    status: str


def parse(page: str) -> list[Row]:
    rows = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == 5 and cells[0] != "#" and not set(cells[0]) <= {"-"}:
            rows.append(Row(cells[0], cells[1], names(cells[2]), names(cells[3]), cells[4]))
    return rows


def names(cell: str) -> list[str]:
    """The paths in a cell: each in backticks, divided by commas."""
    found = [part.strip() for part in cell.split(",") if part.strip()]
    assert all(re.fullmatch(r"`[^`]+`", part) for part in found), cell
    return [part.strip("`") for part in found]


def problems(row: Row, root: Path) -> list[str]:
    """What is untrue in a row, in words."""
    found = []
    if not STATUS.fullmatch(row.status):
        found.append(f"status {row.status!r}")
    if row.status == "not yet":
        return found + [f"names {name}, but is not yet there" for name in row.modules + row.tests]
    if not row.modules or not row.tests:
        found.append("names no module or no test")
    found += [f"no module {name}" for name in row.modules if not any((root / folder / name).is_file() for folder in ("src/penstock", "."))]
    for name in row.tests:
        path, _, function = name.partition("::")
        file = root / "tests" / path
        if not file.is_file():
            found.append(f"no test file {path}")
        elif function and not re.search(rf"^\s*def {re.escape(function)}\(", file.read_text(encoding="utf-8"), re.MULTILINE):
            found.append(f"no {function} in {path}")
    return found


ROWS = parse(PAGE.read_text(encoding="utf-8"))


def test_every_mechanism_has_its_row() -> None:
    assert [row.number for row in ROWS] == NUMBERS
    assert len({row.mechanism for row in ROWS}) == len(NUMBERS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)
def test_a_row_is_true(row: Row) -> None:
    assert problems(row, ROOT) == []


@pytest.mark.parametrize(
    ("module", "test", "status", "problem"),
    [
        ("`model/span.py`", "`unit/model/test_span.py`", "built", None),
        (
            "`model/span.py`, `source/raw.py`",
            "`unit/model/test_span.py::test_spans_sort_by_table_and_start`",
            "partly: the rest",
            None,
        ),
        ("", "", "not yet", None),
        ("`model/nowhere.py`", "`unit/model/test_span.py`", "built", "no module model/nowhere.py"),
        ("`model`", "`unit/model/test_span.py`", "built", "no module model"),
        ("`model/span.py`", "`unit/test_nowhere.py`", "built", "no test file unit/test_nowhere.py"),
        ("`model/span.py`", "`unit/model/test_span.py::test_nothing`", "built", "no test_nothing in unit/model/test_span.py"),
        ("`model/span.py`", "", "built", "names no module or no test"),
        ("`model/span.py`", "", "not yet", "names model/span.py, but is not yet there"),
        ("", "", "soon", "status 'soon'"),
        ("", "", "partly:", "status 'partly:'"),
    ],
)
def test_an_untrue_row_is_found(module: str, test: str, status: str, problem: str | None) -> None:
    (row,) = parse(f"| # | mechanism | module | test | status |\n|---|---|---|---|---|\n| 1 | x | {module} | {test} | {status} |")
    found = problems(row, ROOT)
    assert (problem in found) if problem else not found
