"""The Delta tables of one lake: a folder each, ``schema/table`` below the lake's root. Runs beside the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from penstock.files.buckets import cause_of
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.sink.delta.delta_table import DeltaVersion, commits, delta_schema, noted_table, properties
from penstock.sink.lake.data_files import LakeFile, table_dir
from penstock.sink.lake.format import Mark
from penstock.sink.lake.partitions.division import PartitionField
from penstock.target.storage import ObjectTarget

CHECKPOINT_DIR = "penstock/checkpoint"
_LOG = "/_delta_log/"
_HOUR_MS = 3_600_000
_CHECKPOINT_PROPERTIES = {"delta.logRetentionDuration": "interval 1 days", "delta.deletedFileRetentionDuration": "interval 1 hours"}


class DeltaLake:
    """Implements ``penstock.sink.lake.format.LakeFormat``."""

    has_small_ints = True
    keeps_columns = True

    def __init__(self, uri: str, target: ObjectTarget, feed: str) -> None:
        parts = urlsplit(uri)
        place = unquote(parts.path) if parts.scheme == "file" else f"{_scheme(parts.scheme)}://{parts.netloc}{unquote(parts.path)}"
        self._root = place.rstrip("/")
        self._options = storage_options(parts.scheme, dict(parse_qsl(parts.query)))
        self._target = target
        self._feed = feed

    def open(self, schema: str, table: str) -> DeltaVersion | None:
        """Return the newest version of a table."""
        folder = table_dir(schema, table)
        found = self._load(folder)
        return None if found is None else DeltaVersion(found, folder, self._feed, self._target)

    def create(self, table: TableSchema, schema: pa.Schema, mark: Mark, fields: Sequence[PartitionField]) -> DeltaVersion:
        """Make an empty table, or return the one that is there."""
        return self._create(table, schema, mark, [f.name for f in fields])

    def _create(self, table: TableSchema, schema: pa.Schema, mark: Mark, partition_by: list[str]) -> DeltaVersion:
        found = self.open(table.schema, table.table)
        if found is not None:
            return found
        folder = table_dir(table.schema, table.table)
        with commits():
            DeltaTable.create(
                f"{self._root}/{folder}",
                delta_schema(schema, table),
                mode="ignore",
                partition_by=partition_by or None,
                name=table.full_name,
                storage_options=self._options,
                commit_properties=properties(self._feed, mark),
            )
        made = self.open(table.schema, table.table)
        assert made is not None
        return made

    def drop(self, schema: str, table: str, mark: Mark) -> None:
        """Leave a table without rows: its versions before stay until they expire, and its files with them."""
        found = self.open(schema, table)
        if found is not None and found.table is not None:
            found.overwrite(mark, (), found.table, found.schema, found.partition_columns)

    def rename(self, moves: Mapping[tuple[str, str], TableSchema], mark: Mark) -> None:
        """Copy tables to the folders of their new names, then leave those of the old ones without rows.

        Folders of object stores cannot be renamed. Where names are swapped, the copies wait beside the tables until all are made.
        """
        steps = []
        for (schema, name), after in moves.items():
            found = self.open(schema, name)
            waiting = f".penstock/renames/{mark.ddl_ts}-{after.table_id}"
            if found is not None and found.mark.ddl_ts < mark.ddl_ts and not self._target.exists(f"{waiting}/schema"):
                files = self._copied(found.files(), table_dir(schema, name), waiting)
                self._target.put(f"{waiting}/files", msgspec.json.encode(files))
                self._target.put(f"{waiting}/partition", msgspec.json.encode(found.partition_columns))
                self._target.put(f"{waiting}/schema", found.schema.serialize().to_pybytes())
            steps.append((waiting, after, found))
        taken = {(t.schema, t.table) for t in moves.values()}
        for waiting, after, _ in steps:
            self._take_over(waiting, after, mark)
        for (schema, name), (_, _, found) in zip(moves, steps, strict=True):
            if (schema, name) not in taken and found is not None and found.mark.ddl_ts < mark.ddl_ts:
                self.drop(schema, name, Mark(found.mark.window_ts, mark.ddl_ts, mark.epoch))
        for waiting, _, _ in steps:
            for path in list(self._target.paths(waiting)):
                self._target.delete(path)

    def names(self) -> Iterator[tuple[str, str]]:
        """Yield the tables by their folders."""
        folders = {path.partition(_LOG)[0] for path in self._target.paths() if _LOG in path}
        for folder in sorted(folders - {CHECKPOINT_DIR}):
            found = self._load(folder)
            table = None if found is None else noted_table(found)
            if table is not None:
                yield table.schema, table.table

    def publish(self, row: pa.Table) -> None:
        """Have ``penstock.checkpoint`` hold this row alone."""
        with commits():
            write_deltalake(
                f"{self._root}/{CHECKPOINT_DIR}",
                row,
                mode="overwrite",
                name="penstock.checkpoint",
                configuration=_CHECKPOINT_PROPERTIES,
                storage_options=self._options,
            )

    def published(self) -> pa.Table | None:
        """Return the row of ``penstock.checkpoint``."""
        found = self._load(CHECKPOINT_DIR)
        return None if found is None else found.to_pyarrow_table()

    def expire(self, schema: str, table: str, before_ms: int) -> int:
        """Have delta-rs delete files that no version since has, and the log of versions that may go."""
        folder = table_dir(schema, table)
        found = self._load(folder)
        if found is None:
            return 0
        hours = max(0, (SystemClock().now_ms() - before_ms) // _HOUR_MS)
        with commits():
            # It tells of files again that it deleted before.
            there = frozenset(self._target.paths(folder))
            found.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
            gone = there - frozenset(self._target.paths(folder))
            found.cleanup_metadata()
        return len(gone)

    def _load(self, folder: str) -> DeltaTable | None:
        try:
            return DeltaTable(f"{self._root}/{folder}", storage_options=self._options)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise PenstockError("SINK_UNAVAILABLE", f"delta-rs: {cause_of(error)}") from None

    def _copied(self, files: Sequence[LakeFile], source: str, folder: str) -> list[LakeFile]:
        """Copy files to another folder."""
        found = []
        for file in files:
            copy = msgspec.structs.replace(file, path=f"{folder}/{file.path.removeprefix(source + '/')}")
            self._target.put(copy.path, self._target.get(file.path))
            found.append(copy)
        return found

    def _take_over(self, waiting: str, after: TableSchema, mark: Mark) -> None:
        """Have a table hold what waits for it."""
        schema = self._target.find(f"{waiting}/schema")
        if schema is None:
            return
        fields = pa.ipc.read_schema(pa.py_buffer(schema))
        divided_by = msgspec.json.decode(self._target.find(f"{waiting}/partition") or b"[]", type=list[str])
        version = self._create(after, fields, Mark(epoch=mark.epoch), divided_by)
        if version.mark.ddl_ts < mark.ddl_ts:
            waits = msgspec.json.decode(self._target.get(f"{waiting}/files"), type=list[LakeFile])
            files = self._copied(waits, waiting, table_dir(after.schema, after.table))
            version.overwrite(Mark(version.mark.window_ts, mark.ddl_ts, mark.epoch), files, after, fields, divided_by)


def storage_options(scheme: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of an object store as delta-rs takes them."""
    options = {key.replace("-", "_"): value for key, value in given.items()}
    if scheme in {"s3", "s3a"}:
        if "access_key" in options:
            options["access_key_id"] = options.pop("access_key")
        path_style = options.pop("force_path_style", options.pop("path_style", None))
        if path_style is not None:
            options["virtual_hosted_style_request"] = str(path_style.lower() in {"false", "0"}).lower()
    if options.get("endpoint", options.get("endpoint_url", "")).startswith("http://"):
        options["allow_http"] = "true"
    return options


def _scheme(scheme: str) -> str:
    return {"gcs": "gs", "azure": "az", "azblob": "az"}.get(scheme, scheme)
