"""Files of tables that readers trip over: odd names, no key, partitions, empty texts beside NULL, bytes; and the snippets of a page.

The real sink writes them, without a source, a store or Spark. What the tables hold at the checkpoint is written out by hand. Runs in tests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.model.batch import Op
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.catalog import open_maintainer, open_sink
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.target.storage import unfenced

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reading-files.md"
VERSION = compose_ts(1_794_744_000_000)
CHECKPOINT = VERSION + 100
BIG, TEXT, BYTES = ColumnType(TypeKind.BIGINT), ColumnType(TypeKind.TEXT), ColumnType(TypeKind.BLOB)
MONEY = ColumnType(TypeKind.DECIMAL, length=38, scale=10)
NEW, CHANGED, GONE = Op.INSERT, Op.UPDATE, Op.DELETE
TEXTS = (None, "", "\\N", '"', "a,b", "two\nlines", "two\r\nlines", "\r\n", "ünï 漢字 🦆", " \t", "NULL", "\\", "0x00")
PRICE = Decimal("1234567890123456789012345678.0123456789")


def _table(table_id: int, name: str, *columns: Column, partition_id: int = 0) -> TableSchema:
    return TableSchema(table_id, "shop", name, VERSION, columns, partition_id=partition_id)


ODD = _table(
    1,
    'odd "näme" 漢',
    Column(1, "the id", BIG, nullable=False, primary_key=True),
    Column(2, "_op", TEXT),
    Column(3, 'say "price"', MONEY),
    Column(4, "bytes", BYTES),
)
KEYLESS = _table(2, "keyless", Column(1, "a", BIG), Column(2, "b c", TEXT))
_PART_COLUMNS = (Column(1, "id", BIG, nullable=False, primary_key=True), Column(2, "t", TEXT))
PARTS = [_table(3 + n, "parts", *_PART_COLUMNS, partition_id=70 + n) for n in (0, 1)]


def _write(folder: Path, protocol: str, tables: Sequence[tuple[TableSchema, Sequence[tuple[Any, ...]]]]) -> None:
    """Write changes, each ``(ts, op, values…)``, with the real sink, and publish the checkpoint."""
    folder.mkdir()
    options = {"protocol": protocol}
    sink = open_sink(folder.as_uri(), options, unfenced)
    for number, (schema, rows) in enumerate(tables):
        plain: list[list[Any]] = [[str(value) if isinstance(value, Decimal) else value for value in row] for row in rows]
        columns = list(zip(*((VERSION + ts, op, b"%d" % n, *values) for n, (ts, op, *values) in enumerate(plain)), strict=True))
        batch = schema.batch_schema()
        records = pa.record_batch([pa.array(column, field.type) for column, field in zip(columns, batch, strict=True)], batch)
        name = DispatcherId(schema.table_id, number, 1)
        sink.open_dispatcher(DispatcherWork(name, schema, 0, CHECKPOINT + 50, {}))
        sink.add_dml_event(DmlEvent(name, schema, records))
        sink.close_dispatcher(name)
    sink.close()
    open_maintainer(folder.as_uri(), options, unfenced).publish_checkpoint(CHECKPOINT)


def odd_rows() -> list[tuple[Any, ...]]:
    """Return the changes of the table with odd names: ts after the version, operation, key, text, price, bytes."""
    made = [(1, NEW, n, text, PRICE if n % 2 else None, None if n % 3 else b"\x00\xff,\r\n") for n, text in enumerate(TEXTS)]
    swapped = [(5, GONE, 1, "", PRICE, None), (5, NEW, 1, "came back", None, b"")]
    return [
        *made,
        (2, CHANGED, 0, "now a text", PRICE.copy_negate(), b"\x00"),
        (3, GONE, 5, TEXTS[5], PRICE, None),
        *swapped,
        (120, CHANGED, 2, "too late", None, None),
    ]


def odd_state() -> dict[int, tuple[Any, ...]]:
    """Return what that table holds at the checkpoint, by key."""
    state = {n: (text, PRICE if n % 2 else None, None if n % 3 else b"\x00\xff,\r\n") for n, text in enumerate(TEXTS)}
    del state[5]
    return state | {0: ("now a text", PRICE.copy_negate(), b"\x00"), 1: ("came back", None, b"")}


KEYLESS_ROWS = [(1, NEW, 1, "x"), (1, NEW, 1, "x"), (1, NEW, 1, ""), (1, NEW, None, None), (2, GONE, 1, "x"), (120, NEW, 9, "too late")]
PART_ROWS = [[(1, NEW, 1, "one"), (1, NEW, 2, "moves"), (3, GONE, 2, "moves")], [(1, NEW, 11, "eleven"), (3, NEW, 2, "moved")]]


def write_odd_tables(folder: Path, protocol: str) -> None:
    """Write all of them into a folder that is not there yet."""
    parts = list(zip(PARTS, PART_ROWS, strict=True))
    _write(folder, protocol, [(ODD, odd_rows()), (KEYLESS, KEYLESS_ROWS), *parts])


def snippet(name: str) -> str:
    """Return the code of the page under a name."""
    (found,) = re.findall(rf"^```python name={name}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return str(found)


def read(folder: Path, table_name: str, *names: str, **given: Any) -> dict[str, Any]:
    """Run snippets one after the other, as a reader does; return what they leave."""
    (home,) = {path.parents[1] for path in folder.rglob("schema_*.json") if table_name in path.parts[-3]}
    known: dict[str, Any] = {"target": str(folder), "table_folder": str(home), "schema_file": str(min(home.glob("meta/*.json"))), **given}
    for name in ("find", "columns", *names):
        exec(compile(snippet(name), f"{PAGE.name}:{name}", "exec"), known)  # noqa: S102 - the page's own code is what is tested
    return known
