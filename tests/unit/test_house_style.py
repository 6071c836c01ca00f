import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "penstock"
MODULES = sorted(p for folder in (PACKAGE, ROOT / "testing") for p in folder.rglob("*.py") if "_pb2" not in p.name)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
LINES_MAX, LINES_WANTED, ROOM_MAX = 600, 400, 15
STILL_LONG = {f"src/penstock/source/mysql/{name}.py" for name in ("log_reader", "rows/images", "tables/table_versions")}
STILL_LONG |= {f"src/penstock/source/postgres/{name}.py" for name in ("log_reader", "tables/schema_book", "upstream")}
"""What is to be taken apart: nothing is added here."""
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "base", "misc"}
CLOCK_CALLS = {f"time.{name}" for name in ("sleep", "time", "time_ns", "monotonic", "monotonic_ns")} | {"datetime.now", "dt.datetime.now"}
SHARED_RANDOM = re.compile(r"random\.[a-z]\w*")
READS_THE_CLOCK = {PACKAGE / "model" / "clock.py", ROOT / "testing" / "servers" / "seaweed.py"}
"""The seam itself, and a foreign process that can only be waited for in real time."""
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every call by its dotted name, as far as it has one, and its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno


def breaches(source: str) -> list[str]:
    """What a module's text does that no shipped module may do."""
    tree = ast.parse(source)
    found = [] if ast.get_docstring(tree) else ["no docstring"]
    for call, line in calls(tree):
        if call in CLOCK_CALLS:
            found.append(f"line {line}: {call} instead of the clock seam")
        elif SHARED_RANDOM.fullmatch(call):
            found.append(f"line {line}: {call} instead of a generator by constructor")
    found += [
        f"line {node.lineno}: NotImplementedError"
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "NotImplementedError"
    ]
    lines = source.splitlines()
    found += [f"line {at}: unfinished" for at, line in enumerate(lines, 1) if UNFINISHED.search(line)]
    if len(lines) > LINES_MAX:
        found.append(f"{len(lines)} lines")
    return found


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_modules_keep_the_rules(module: Path) -> None:
    assert not VAGUE_NAMES & set(module.relative_to(ROOT).with_suffix("").parts)
    found = breaches(module.read_text(encoding="utf-8"))
    if module in READS_THE_CLOCK:
        found = [breach for breach in found if "the clock seam" not in breach]
    assert found == []


def test_what_ships_is_no_longer_than_a_reader_can_take_in() -> None:
    lines = {name_of(p): len(p.read_text(encoding="utf-8").splitlines()) for p in MODULES if PACKAGE in p.parents}
    assert {name: count for name, count in lines.items() if count > LINES_WANTED and name not in STILL_LONG} == {}


@pytest.mark.parametrize("module", TESTS, ids=name_of)
def test_tests_wait_for_events_and_never_sleep(module: Path) -> None:
    slept = [line for call, line in calls(ast.parse(module.read_text(encoding="utf-8"))) if call.split(".")[-1] == "sleep"]
    assert slept == []


def test_no_folder_holds_more_modules_than_a_reader_can_take_in() -> None:
    folders = (PACKAGE, *(ROOT / name for name in ("testing", "tests", "benchmarks", "scripts")))
    rooms = Counter(p.parent for folder in folders for p in folder.rglob("*.py") if p.name not in {"__init__.py", "conftest.py"})
    assert {name_of(room): modules for room, modules in rooms.items() if modules > ROOM_MAX} == {}


def test_tests_have_no_packages() -> None:
    assert [name_of(p) for p in TESTS if p.name == "__init__.py"] == []


@pytest.mark.parametrize(
    ("source", "breach"),
    [
        ("x = 1", "no docstring"),
        ('"""D."""\nimport time\ntime.sleep(1)', "line 3: time.sleep instead of the clock seam"),
        ('"""D."""\nimport random\nrandom.random()', "line 3: random.random instead of a generator by constructor"),
        ('"""D."""\nraise NotImplementedError', "line 2: NotImplementedError"),
        ('"""D."""\n# TO' + "DO later", "line 2: unfinished"),
        ('"""D."""\n' + "x = 1\n" * LINES_MAX, f"{LINES_MAX + 1} lines"),
    ],
)
def test_a_breach_is_found(source: str, breach: str) -> None:
    assert breaches(source) == [breach]


def test_what_is_allowed_is_no_breach() -> None:
    assert breaches('"""D."""\nimport random, time\nrandom.Random(7)\nself.random.choice([1])\ntime.perf_counter()\n') == []
