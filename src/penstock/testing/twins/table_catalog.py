"""An upstream that has tables and no rows: enough for creating feeds. Runs in tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.model.batch import ChangeBatch
from penstock.model.errors import PenstockError
from penstock.model.raw import RawBatch
from penstock.model.span import Span
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.contract import Decoded, RangeEpoch, RangeInfo


class _EmptyDecoder:
    def decode(self, span_id: int, raw: RawBatch) -> Decoded:
        return Decoded()


class TableCatalog:
    """Implements ``Upstream``. ``unreachable`` makes every call fail as a dead upstream does."""

    def __init__(self, *names: str, ts: int = 1 << 50) -> None:
        self.unreachable = False
        self._ts = ts
        self._tables = [_table(100 + at, name) for at, name in enumerate(names)]

    def current_ts(self) -> int:
        """Return the catalog's ts."""
        self._answer()
        return self._ts

    def list_tables(self) -> Sequence[TableSchema]:
        """Return the tables."""
        self._answer()
        return list(self._tables)

    def schema_history(self, table_id: int) -> Sequence[TableSchema]:
        """Return the only version of a table."""
        self._answer()
        return [table for table in self._tables if table.table_id == table_id]

    def key_span(self, span: Span) -> tuple[bytes, bytes]:
        """Return keys that begin with the table's id."""
        prefix = span.table_id.to_bytes(8, "big")
        return prefix + span.start_key, prefix + span.end_key if span.end_key else (span.table_id + 1).to_bytes(8, "big")

    def ranges(self, span: Span) -> Sequence[RangeInfo]:
        """Return one range per table."""
        self._answer()
        start, end = self.key_span(Span(span.table_id))
        return [RangeInfo(span.table_id, span.table_id, start, end, RangeEpoch(1, 1), 1, "127.0.0.1:1")]

    def decoder(self) -> _EmptyDecoder:
        """Return a decoder that finds nothing."""
        return _EmptyDecoder()

    def read_table(self, span: Span, ts: int) -> Iterator[ChangeBatch]:
        """Yield nothing."""
        self._answer()
        return iter(())

    def close(self) -> None:
        """Do nothing."""

    def _answer(self) -> None:
        if self.unreachable:
            raise PenstockError("UPSTREAM_UNREACHABLE", "dataserver://127.0.0.1:1 does not answer")


def _table(table_id: int, full_name: str) -> TableSchema:
    schema, _, table = full_name.partition(".")
    return TableSchema(table_id, schema, table, 1, (Column(1, "id", ColumnType(TypeKind.BIGINT), nullable=False, primary_key=True),))
