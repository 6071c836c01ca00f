"""The Iceberg tables of one warehouse: a catalog, and a namespace for each schema of the upstream. Runs beside the driver."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table

from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.settings.masking import mask_uri
from penstock.sink.iceberg.catalogs import commits, open_catalog
from penstock.sink.iceberg.iceberg_table import MADE, IcebergVersion
from penstock.sink.iceberg.types import field_id, iceberg_schema
from penstock.sink.lake.data_files import dir_name, table_dir
from penstock.sink.lake.format import Mark
from penstock.sink.lake.partitions.division import PartitionField
from penstock.target.storage import ObjectTarget

CHECKPOINT = ("penstock", "checkpoint")
_PROPERTIES = {"format-version": "2", "commit.retry.num-retries": "0", MADE: "true"}
_CHECKPOINT_PROPERTIES = {**_PROPERTIES, "write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "5"}


class IcebergLake:
    """Implements ``penstock.sink.lake.format.LakeFormat``."""

    has_small_ints = False
    keeps_columns = False

    def __init__(self, uri: str, catalog: str, target: ObjectTarget, feed: str) -> None:
        parts = urlsplit(uri)
        self._root = f"{parts.scheme}://{parts.netloc}{unquote(parts.path)}".rstrip("/")
        self._target = target
        self.catalog = open_catalog(uri, catalog, self._root)

    def open(self, schema: str, table: str) -> IcebergVersion | None:
        """Return the newest version of a table."""
        found = self.table(schema, table)
        return None if found is None else IcebergVersion(found, self._root)

    def create(self, table: TableSchema, schema: pa.Schema, mark: Mark, fields: Sequence[PartitionField]) -> IcebergVersion:
        """Make an empty table, or return the one that is there."""
        found = self.open(table.schema, table.table)
        if found is None:
            self._make((table.schema, table.table), schema, _PROPERTIES)
            found = self.open(table.schema, table.table)
            assert found is not None
        if found.table is None and found.is_made_here:
            # The catalog gave the columns ids of its own.
            found.replace(mark, (), table, schema, fields)
            found = self.open(table.schema, table.table)
            assert found is not None
        return found

    def drop(self, schema: str, table: str, mark: Mark) -> None:
        """Take a table out of the catalog; its files stay."""
        with commits():
            try:
                self.catalog.drop_table(_identifier(schema, table))
            except NoSuchTableError:
                return

    def rename(self, moves: Mapping[tuple[str, str], TableSchema], mark: Mark) -> None:
        """Rename tables in the catalog, by way of names of our own because names may be swapped."""
        for (schema, name), after in moves.items():
            found = self.open(schema, name)
            if found is not None and found.table is not None and found.table.table_id == after.table_id and found.mark.ddl_ts < mark.ddl_ts:
                self._move((schema, name), (schema, _waiting(after, mark)))
        for (schema, _), after in moves.items():
            waiting = self.open(schema, _waiting(after, mark))
            if waiting is not None:
                told = Mark(waiting.mark.window_ts, mark.ddl_ts, mark.epoch)
                waiting.alter(told, after, waiting.schema)
                self._move((schema, _waiting(after, mark)), (after.schema, after.table))

    def names(self) -> Iterator[tuple[str, str]]:
        """Yield the tables by what they say of themselves."""
        with commits():
            tables = [self.catalog.load_table(found) for name in self.catalog.list_namespaces() for found in self.catalog.list_tables(name)]
        for table in tables:
            found = IcebergVersion(table, self._root)
            if found.table is not None and self._holds(table):
                yield found.table.schema, found.table.table

    def publish(self, row: pa.Table) -> None:
        """Have ``penstock.checkpoint`` hold this row alone."""
        found = self.table(*CHECKPOINT)
        with commits():
            if found is None:
                fields = [f.with_metadata({"PARQUET:field_id": str(at)}) for at, f in enumerate(row.schema, 1)]
                found = self._make(CHECKPOINT, pa.schema(fields), _CHECKPOINT_PROPERTIES)
            found.overwrite(row) if found.current_snapshot() else found.append(row)

    def published(self) -> pa.Table | None:
        """Return the row of ``penstock.checkpoint``."""
        found = self.table(*CHECKPOINT)
        return None if found is None else found.scan().to_arrow()

    def expire(self, schema: str, table: str, before_ms: int) -> int:
        """Let snapshots go, then delete the files that only they had."""
        found = self.table(schema, table)
        if found is None or found.current_snapshot() is None:
            return 0
        before = _all_files(found)
        with commits():
            expiring = found.maintenance.expire_snapshots()
            expiring.older_than(dt.datetime.fromtimestamp(before_ms / 1000, dt.UTC)).commit()
        gone = before - _all_files(found.refresh())
        for path in sorted(gone):
            self._target.delete(path.removeprefix(f"{self._root}/"))
        return len(gone)

    def table(self, schema: str, table: str) -> Table | None:
        """Return a table as pyiceberg has it. Raises where the catalog has one of another warehouse under the name."""
        with commits():
            try:
                found = self.catalog.load_table(_identifier(schema, table))
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
        if not self._holds(found):
            what = f"{schema}.{table} of the catalog lies in {mask_uri(found.location())}, not in this warehouse"
            raise PenstockError("SINK_OCCUPIED", what)
        return found

    def _holds(self, table: Table) -> bool:
        return str(table.location()).startswith(f"{self._root}/")

    def _make(self, name: tuple[str, str], schema: pa.Schema, properties: Mapping[str, str]) -> Table:
        schema = pa.schema(sorted(schema, key=field_id))
        with commits():
            self._make_namespace(name[0])
            try:
                location = f"{self._root}/{table_dir(*name)}"
                return self.catalog.create_table(_identifier(*name), iceberg_schema(schema, 0), location, properties=properties)
            except TableAlreadyExistsError:
                return self.catalog.load_table(_identifier(*name))

    def _move(self, before: tuple[str, str], after: tuple[str, str]) -> None:
        with commits():
            self._make_namespace(after[0])
            self.catalog.rename_table(_identifier(*before), _identifier(*after))

    def _make_namespace(self, schema: str) -> None:
        try:
            self.catalog.create_namespace(_identifier(schema, "")[:1])
        except NamespaceAlreadyExistsError:
            return


def _all_files(table: Table) -> set[str]:
    """Return the files that the snapshots of a table have: data, manifests and lists of them."""
    found = set[str]()
    for snapshot in table.snapshots():
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)}
    return found


def _identifier(schema: str, table: str) -> tuple[str, str]:
    """Return the name of a table in the catalog, where a dot would divide it."""
    return dir_name(schema).replace(".", "~2e~"), dir_name(table).replace(".", "~2e~")


def _waiting(after: TableSchema, mark: Mark) -> str:
    return f"penstock-{mark.ddl_ts}-{after.table_id}"
