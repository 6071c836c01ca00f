"""What happens to a storage target once per feed: checking, claiming, schema files of DDLs, checksums, transactions, the checkpoint.

Invariants: nothing of a window counts in a target that lost the mark of its feed; a DDL's files are the same however often it is written;
the published checkpoint never goes back. Runs beside the driver.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from penstock.ddl.compose import rename_text
from penstock.ddl.statement import dropped_tables
from penstock.ddl.tokens import statements
from penstock.format.column_selection import select_columns
from penstock.format.json.transaction_messages import boundary_messages
from penstock.format.layout.checkpoint import parse_checkpoint, render_checkpoint
from penstock.format.layout.checksum_record import FileChecksum, record_path, render_record
from penstock.format.layout.partition_record import partition_records
from penstock.format.layout.paths import METADATA_PATH
from penstock.format.layout.schema_file import SchemaFile, parse_schema_file
from penstock.format.layout.transaction_index import IndexedFile, TransactionIndex, index_path, messages_path
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import InvariantError, PenstockError
from penstock.model.failpoints import reach
from penstock.sink.contract import DispatcherResult, WrittenFile
from penstock.target.owner_mark import OwnerMark
from penstock.target.settings import StorageSinkSettings
from penstock.target.storage import SMALL_BYTES_MAX, ObjectTarget

_PUBLISH_TRIES_MAX = 10
_SCHEMA_DDLS = frozenset({DdlType.CREATE_SCHEMA, DdlType.DROP_SCHEMA})


class StorageMaintainer:
    """Acts once per feed on a storage target; implements ``penstock.sink.contract.SinkMaintainer``. Not thread safe."""

    def __init__(self, target: ObjectTarget, settings: StorageSinkSettings, rng: random.Random | None = None, claimant: str = "") -> None:
        """``claimant`` is the feed whose mark the target must have, where it was claimed."""
        self._target = target
        self._settings = settings
        self._mark = OwnerMark(target, rng)
        self._claimant = claimant

    def check(self, feed: str) -> None:
        """Raise unless the target is writable and empty or this feed's own."""
        self._mark.check(feed)

    def probe(self) -> None:
        """Raise unless the target takes an object and lets go of it."""
        self._mark.probe()

    def claim(self, feed: str) -> None:
        """Mark the target as this feed's; of two feeds that claim at once, one fails."""
        self._mark.claim(feed)

    def write_block_event(self, event: DdlEvent) -> Sequence[str]:
        """Write the schema files of a DDL; return their paths."""
        return write_ddl_files(self._target, self._settings, event)

    def record_window(self, from_ts: int, to_ts: int, results: Sequence[DispatcherResult]) -> None:
        """Write the checksums of a window's files, and its transactions; a window that is written again has the same."""
        if self._claimant:
            self._mark.require(self._claimant)
        files = [file for result in results for file in result.files]
        if not files:
            return
        reach("checksums:before")
        self._target.put(record_path(to_ts), render_record(FileChecksum(f.path, f.nbytes, f.checksum) for f in files))
        reach("checksums:after")
        if self._settings.indexes_transactions:
            self._write_transactions(TransactionIndex.of(from_ts, to_ts, ((self._indexed(f), f.transactions) for f in files)))

    def _write_transactions(self, index: TransactionIndex) -> None:
        """Write what tells of a window's transactions: where the protocol has messages about them those first, then the index."""
        reach("transactions:before")
        if self._settings.numbers_events:
            self._target.put_new(messages_path(index.to_ts), boundary_messages(index, self._settings.debezium.line_end))
        self._target.put_new(index_path(index.to_ts), index.render())
        reach("transactions:after")

    def _indexed(self, file: WrittenFile) -> IndexedFile:
        found = self._settings.layout.parse_data(file.path)
        if found is None:
            raise InvariantError(f"{file.path} is no data file")
        return IndexedFile(file.path, found.dir.schema, found.dir.table, file.rows, state=not file.transactions)

    def publish_checkpoint(self, checkpoint_ts: int, not_covered: Mapping[str, str] | None = None) -> None:
        """Publish the checkpoint, and what it does not cover, unless a later one is there."""
        # Another owner may publish meanwhile, or an answer be lost and this one have published: what is there decides.
        if not any(self._publish(checkpoint_ts, not_covered or {}) for _ in range(_PUBLISH_TRIES_MAX)):
            raise PenstockError("SINK_UNAVAILABLE", f"{self._target.name}: {METADATA_PATH} never stood still")

    def published_ts(self) -> int:
        """Return the checkpoint that is published, 0 where none is; raise where the target is not the feed's any more."""
        if self._claimant:
            self._mark.require(self._claimant)
        content = self._target.find(METADATA_PATH)
        return 0 if content is None else parse_checkpoint(content)

    def _publish(self, checkpoint_ts: int, not_covered: Mapping[str, str]) -> bool:
        """Publish over the state that is there now; return False where that has changed meanwhile. Each time it has, it has grown."""
        found, content = self._target.find_tagged(METADATA_PATH), render_checkpoint(checkpoint_ts, not_covered)
        if found is not None:
            there_ts = parse_checkpoint(found[0])
            if there_ts > checkpoint_ts or (there_ts == checkpoint_ts and found[0] == content):
                return True
        elif self._claimant:
            # Not in the place of a target that was moved away since its window was committed.
            self._mark.require(self._claimant)
        reach("metadata:before")
        try:
            self._target.put_over(METADATA_PATH, content, None if found is None else found[1])
        except FileExistsError:
            return False
        reach("metadata:after")
        return True


def write_ddl_files(target: ObjectTarget, settings: StorageSinkSettings, event: DdlEvent) -> list[str]:
    """Write the schema files of a DDL, the same however often; return their paths."""
    paths = []
    event = msgspec.structs.replace(event, tables=tuple(select_columns(t, settings.column_selectors) for t in event.tables))
    for file in ddl_files(event, output_column_id=settings.output_column_id):
        _write_schema(target, file)
        paths.append(file.path)
    for record in partition_records(event):
        target.put_new(record.path, record.render())
        paths.append(record.path)
    return paths


def _write_schema(target: ObjectTarget, file: SchemaFile) -> None:
    content = file.render()
    reach("schema-file:before")
    try:
        target.put_new(file.path, content)
    except PenstockError as error:
        if error.code != "SINK_CONFLICT":
            raise
        # A structure-only file of this version takes the DDL's text; the structure is the same, or the name would differ.
        present = parse_schema_file(target.get(file.path, SMALL_BYTES_MAX), file.path)
        if present.type == DdlType.NONE and not present.query:
            target.put(file.path, content)
    reach("schema-file:after")


def ddl_files(event: DdlEvent, *, output_column_id: bool = False) -> Iterator[SchemaFile]:
    """Yield the schema files of a DDL: one per table, or one of the database where it touches none."""
    ddl_type, queries = _single(event)
    if event.type in _SCHEMA_DDLS:
        yield SchemaFile(event.schema, "", event.commit_ts, event.query, ddl_type)
        return
    # Partitions of one table share its schema file.
    first_of = {(t.schema, t.table): at for at, t in reversed(list(enumerate(event.tables)))}
    for at, table in enumerate(event.tables):
        if first_of[table.schema, table.table] != at:
            continue
        if event.type is DdlType.EXCHANGE_PARTITION and at > 0:
            yield SchemaFile.of_table(table, output_column_id=output_column_id)
        else:
            yield SchemaFile.of_table(table, queries[at], ddl_type, output_column_id=output_column_id)
    if event.tables:
        return
    names = [(schema, name) for _, schema, name in event.old_names] or dropped_tables(event.query, event.schema)
    for schema, name in names:
        yield SchemaFile(schema, name, event.commit_ts, event.query, ddl_type)
    if not names:
        yield SchemaFile(event.schema, "", event.commit_ts, event.query, ddl_type)


def _single(event: DdlEvent) -> tuple[DdlType, list[str]]:
    """Return type and text per table: statements over several tables are written as one per table, renames in one form."""
    count = len(event.tables)
    if event.type is DdlType.CREATE_TABLES:
        parts = statements(event.query)
        return DdlType.CREATE_TABLE, parts if len(parts) == count else [event.query] * count
    if event.type in {DdlType.RENAME_TABLE, DdlType.RENAME_TABLES}:
        old = {table_id: (schema, table) for table_id, schema, table in event.old_names}
        return DdlType.RENAME_TABLE, [
            rename_text(old[t.table_id], (t.schema, t.table)) if t.table_id in old else event.query for t in event.tables
        ]
    return event.type, [event.query] * count
