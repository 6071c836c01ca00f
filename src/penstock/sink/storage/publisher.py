"""Publishes cut files: names them, makes sure of their schema file, writes data, then index.

Owns a dispatcher's file numbers. Invariants: numbers follow from the last committed position alone and have no gaps, so a repeated
attempt writes the same names; a schema file precedes the first data of its version; an index never names a file that is not there and
never goes back. ``begin`` and ``write_data`` are called for one file after the other, ``complete`` for written ones in the same order, each
by one thread at a time. Runs on executors.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import groupby

from penstock.format.layout.checksum_record import checksum_of
from penstock.format.layout.index_file import parse_index, render_index
from penstock.format.layout.paths import DataDir, DataPath, parse_schema_path, schema_dir
from penstock.format.layout.schema_file import SchemaFile
from penstock.model.errors import PenstockError
from penstock.model.failpoints import reach
from penstock.model.table import TableSchema
from penstock.sink.contract import DispatcherWork, WrittenFile
from penstock.sink.storage.cut_records import CutRecord, CutRecords
from penstock.sink.storage.encode.file_filler import FlushTask
from penstock.target.positions import position_key, schema_key, shortened
from penstock.target.settings import StorageSinkSettings
from penstock.target.storage import ObjectTarget

_INDEX_TRIES_MAX = 20


class Publication:
    """A file that has its name."""

    __slots__ = ("checksum", "created", "directory", "key", "nbytes", "number", "path", "start_s", "task")

    def __init__(self, task: FlushTask, directory: DataDir, key: str, number: int, path: str) -> None:
        self.task = task
        self.directory = directory
        self.key = key
        self.number = number
        self.path = path
        self.nbytes = 0
        self.checksum = ""
        self.start_s = 0.0
        self.created = False


class SchemaVersions:
    """Which directory version a table version writes to, after its schema file is in the target. Shared by a task's dispatchers."""

    def __init__(self, target: ObjectTarget, *, output_column_id: bool) -> None:
        self._target = target
        self._output_column_id = output_column_id
        self._known: dict[TableSchema, int] = {}
        self._lock = threading.Lock()

    def ensure(self, table: TableSchema) -> int:
        """Return the directory version; write the schema file unless it, or an equal one just before it, is there.

        The newest schema file at or below the version decides: where it has the same checksum, its version is used again, as after
        a restart. An equal but older one is not: a different structure lies between. Two threads that ask at once find the same.
        """
        with self._lock:
            known = self._known.get(table)
        if known is None:
            known = self._find_or_write(table)
            with self._lock:
                self._known[table] = known
        return known

    def _find_or_write(self, table: TableSchema) -> int:
        file = SchemaFile.of_table(table, output_column_id=self._output_column_id)
        found = [p for p in map(parse_schema_path, self._target.paths(schema_dir(table.schema, table.table))) if p is not None and p.table]
        older = [p for p in found if p.version <= table.version]
        newest = max(older, key=lambda p: (p.version, p.checksum == file.checksum), default=None)
        if newest is not None and newest.checksum == file.checksum:
            return newest.version
        reach("schema-file:before")
        try:
            self._target.put_new(file.path, file.render())
        except PenstockError as error:
            # Another writer made it meanwhile, with the DDL's text in it; the name says that the structure is the same.
            if error.code != "SINK_CONFLICT":
                raise
        reach("schema-file:after")
        return table.version


class FilePublisher:
    """The files of one dispatcher in one window."""

    def __init__(
        self, work: DispatcherWork, settings: StorageSinkSettings, target: ObjectTarget, versions: SchemaVersions, records: CutRecords
    ) -> None:
        self._work = work
        self._layout = settings.layout
        self._target = target
        self._versions = versions
        self._records = records
        one = work.dispatcher
        self._dispatcher = self._layout.dispatcher_text(one.table_id, one.span, one.spans, work.table.partition_id)
        self._position = dict(work.position)
        self._last_key = ""
        self._indexes: dict[str, tuple[int, str | None]] = {}
        """Indexes as this attempt last saw them: the number, and the tag of that state."""
        self.known_cuts: list[CutRecord] = []
        """The cuts by the clock that this attempt made or read."""
        self.files: list[WrittenFile] = []

    def describe(self, table: TableSchema) -> None:
        """Make sure that the target has the schema file of a table version, also where no row of it came."""
        self._directory_version(table)

    def begin(self, task: FlushTask) -> Publication:
        """Name a file, after its schema file and the record of a cut by the clock are in the target.

        The record comes before this file and before all later ones: where they begin follows from it.
        """
        if task.cut is not None:
            self.known_cuts.append(task.cut)
            self._records.record(self._work, task.cut)
        version = self._directory_version(task.table)
        directory = self._layout.data_dir(task.table, version, task.first_ts)
        key = position_key(version, directory.date, self._dispatcher)
        number = self._position[key] = self._position.get(key, 0) + 1
        return Publication(task, directory, key, number, self._layout.data_path(DataPath(directory, self._dispatcher, number)))

    def write_data(self, publication: Publication, content: bytes | memoryview) -> None:
        """Write a file; durable when it returns."""
        reach("data-put:before")
        try:
            publication.created = self._target.put_new(publication.path, content)
        except PenstockError as error:
            if error.code != "SINK_CONFLICT":
                raise
            raise self._records.explain_conflict(self._work, publication.task.file, self.known_cuts, error) from error
        reach("data-put:after")
        publication.nbytes, publication.checksum = len(content), checksum_of(content)

    def complete(self, publications: Sequence[Publication]) -> None:
        """Write the indexes of files whose data is there, which follow each other; durable when it returns."""
        for directory, found in groupby(publications, key=lambda p: p.directory):
            files = list(found)
            self._write_index(directory, files[-1].number, first=files[0].number == 1 and files[0].created)
            self._last_key = files[-1].key
            self.files += [WrittenFile(p.path, p.task.rows, p.nbytes, p.checksum, p.task.transactions) for p in files]

    def position(self) -> dict[str, int]:
        """Return where the dispatcher stands: the numbers of the last directory and its version; what is older never counts again."""
        return shortened(self._position, self._last_key) if self._last_key else dict(self._position)

    def _directory_version(self, table: TableSchema) -> int:
        # A position that knows the version was committed after the schema file was written.
        key = schema_key(table.version)
        if key not in self._position:
            self._position[key] = self._versions.ensure(table)
        return self._position[key]

    def _write_index(self, directory: DataDir, number: int, *, first: bool) -> None:
        """Write an index unless it names a later file. Another attempt may write it too, so it is put over a known state only."""
        path = self._layout.index_path(directory, self._dispatcher)
        if first and path not in self._indexes:
            self._indexes[path] = (0, None)
        for _ in range(_INDEX_TRIES_MAX):
            named, tag = self._indexes.get(path) or self._read_index(path)
            if named >= number:
                self._indexes[path] = (named, tag)
                return
            self._indexes.pop(path, None)
            reach("index-put:before")
            try:
                tag = self._target.put_over(path, render_index(self._layout, number, self._dispatcher), tag)
            except FileExistsError:
                continue
            reach("index-put:after")
            if tag is not None:
                self._indexes[path] = (number, tag)
            return
        raise PenstockError("SINK_UNAVAILABLE", f"{path}: other attempts keep writing it")

    def _read_index(self, path: str) -> tuple[int, str | None]:
        """Return the number that an index names, 0 where there is none, and the tag of its state."""
        found = self._target.find_tagged(path)
        return (0, None) if found is None else (parse_index(self._layout, found[0], path, self._dispatcher), found[1])
