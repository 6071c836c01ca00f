import ast
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.format.csv.dialect import CsvSettings
from penstock.format.layout.paths import DataPath, Layout
from penstock.format.layout.schema_file import SchemaFile
from penstock.model.batch import Op
from penstock.model.ddl import DdlType
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from testing.checks.whole_file import encode

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))])

ORDERS = TableSchema(
    104,
    "shop",
    "orders",
    compose_ts(1_794_744_000_000),
    (
        Column(1, "id", ColumnType(TypeKind.BIGINT, unsigned=True), nullable=False, primary_key=True),
        Column(2, "customer", ColumnType(TypeKind.VARCHAR, length=40), nullable=False),
        Column(3, "total", ColumnType(TypeKind.DECIMAL, length=12, scale=2), nullable=False, default="0.00"),
        Column(4, "state", ColumnType(TypeKind.ENUM, elems=("new", "paid", "sent"))),
        Column(5, "placed_at", ColumnType(TypeKind.DATETIME, scale=3)),
        Column(6, "note", ColumnType(TypeKind.TEXT)),
    ),
)
SCHEMA_FILE = SchemaFile.of_table(ORDERS, "ALTER TABLE `orders` ADD COLUMN `note` TEXT", DdlType.ADD_COLUMN)
FIRST_TS = compose_ts(1_794_744_003_000)


def block(page: str, info: str) -> str:
    """The content of the fenced block with this info string."""
    (found,) = re.findall(rf"^```{re.escape(info)}\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(found)


def errors_doc(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "errors_doc.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_error_page_is_current() -> None:
    done = errors_doc("--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_page_that_is_not_current_is_noticed_and_mended(tmp_path: Path) -> None:
    page = tmp_path / "errors.md"
    assert errors_doc("--check", "--page", str(page)).returncode == 1
    page.write_text("# Errors\n", encoding="utf-8")
    done = errors_doc("--check", "--page", str(page))
    assert (done.returncode, done.stderr) == (1, "errors.md is not current; run: make docs\n")
    assert page.read_text(encoding="utf-8") == "# Errors\n"
    assert errors_doc("--page", str(page)).returncode == 0
    assert page.read_bytes() == (DOCS / "errors.md").read_bytes()


def test_the_page_of_benchmarks_is_what_the_runs_say() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "benchmarks_doc.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}, target


def test_the_schema_file_in_the_docs_is_what_is_written() -> None:
    assert block("storage-layout.md", "json schema") == SCHEMA_FILE.render().decode() + "\n"


def test_the_rows_in_the_docs_are_what_is_written() -> None:
    who, placed = 'Ada "A." King', "2026-11-15 12:00:02.000"
    rows = [
        (FIRST_TS, Op.INSERT, b"17", 17, who, "12.50", 1, placed, None),
        (FIRST_TS + 1, Op.UPDATE, b"17", 17, who, "12.50", 2, placed, "paid in cash"),
        (FIRST_TS + 2, Op.DELETE, b"17", 17, who, "12.50", 2, placed, "paid in cash"),
    ]
    schema = ORDERS.batch_schema()
    records = pa.record_batch([pa.array(column, f.type) for column, f in zip(zip(*rows, strict=True), schema, strict=True)], schema)
    assert block("storage-layout.md", "csv rows").replace("\n", "\r\n").encode() == encode(ORDERS, records, CsvSettings())


def test_the_paths_in_the_docs_are_where_it_is_written() -> None:
    layout = Layout()
    directory = layout.data_dir(ORDERS, ORDERS.version, FIRST_TS)
    paths = [layout.data_path(DataPath(directory, "", 1)), layout.index_path(directory), SCHEMA_FILE.path]
    assert "\n".join(paths) + "\n" in (DOCS / "storage-layout.md").read_text(encoding="utf-8")


def test_make_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE)
    assert set(targets) == {
        *("help", "setup", "setup-test", "demo", "newcomer", "test", "test-mysql", "bench", "chaos", "lint"),
        *("proto", "docs", "sbom", "hashes", "audit", "wheel-test", "fresh", "release"),
    }
    done = subprocess.run(["make", "-C", str(ROOT), "--no-print-directory"], capture_output=True, text=True, timeout=60, check=True)
    assert re.findall(r"^  make ([a-z-]+) ", done.stdout, re.MULTILINE) == targets


def test_pins_name_versions_and_no_addresses() -> None:
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+|# [^/]+", line), line


def test_the_walk_of_a_change_names_files_that_exist() -> None:
    """``integration/test_one_log_feed.py`` follows a real change along it."""
    section = (DOCS / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("### The walk of one change")[2].partition("\n## ")[0]
    named = re.findall(r"^(\d+)\. `([a-z_/]+\.py)` [a-z]", section, re.MULTILINE)
    assert [int(number) for number, _ in named] == list(range(1, len(named) + 1))
    assert 20 < len(named) <= 40
    assert [name for _, name in named if not (ROOT / "src" / "penstock" / name).is_file()] == []


def test_the_tree_of_the_architecture_is_the_tree_in_its_own_words() -> None:
    package = ROOT / "src" / "penstock"
    rooms = {p.parent.relative_to(package).as_posix(): p for p in package.rglob("__init__.py") if p.parent != package}
    rooms |= {p.parent.relative_to(ROOT).as_posix(): p for p in (ROOT / "testing").rglob("__init__.py")}
    words = {name: ast.get_docstring(ast.parse(p.read_text(encoding="utf-8"))) or "" for name, p in rooms.items()}
    section = (DOCS / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("### The tree")[2].partition("\n## ")[0]
    shown = {name: text.partition("\n\n")[0].replace("\n", " ").replace("``", "`") for name, text in words.items()}
    assert dict(re.findall(r"^\| `([a-z_/]+)` \| (.*) \|$", section, re.MULTILINE)) == shown
