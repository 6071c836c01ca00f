"""What a storage target holds and whether it is sound: listing and checking.

``check`` looks for everything that a reader would trip over: gaps in file numbers, index files that name what is not there, data files
that no index names, schema files whose checksum or version is not that of their name, directories without a schema file, files that do not
decode or are not what was written, rows out of commit order, links out of the target. Invariants: looking changes nothing; whatever a
target holds is a finding, never an error, and takes bounded memory and time. Runs anywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from penstock.format.data_file import DECODED_BYTES_MAX
from penstock.format.layout.checkpoint import parse_checkpoint
from penstock.format.layout.checksum_record import FileChecksum, checksum_of, parse_record, parse_record_path
from penstock.format.layout.index_file import parse_index
from penstock.format.layout.paths import METADATA_PATH, OWNER_DIR, OWNER_PATH, DataDir, DataPath, parse_schema_path
from penstock.format.layout.schema_file import check_schema_name, parse_schema_file, stand_ins
from penstock.format.layout.transaction_index import TS, parse_transaction_index, parse_transactions_path
from penstock.model.errors import PenstockError
from penstock.model.table import COMMIT_TS, TableSchema
from penstock.readback.reader import StorageReader
from penstock.target.settings import Atomicity, StorageSinkSettings
from penstock.target.storage import SMALL_BYTES_MAX, ObjectTarget


@dataclass(frozen=True, slots=True)
class TableSummary:
    """What a target holds of one table."""

    schema: str
    table: str
    versions: int
    files: int
    first_date: str
    last_date: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: where, and what."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


@dataclass(slots=True)
class Extent:
    """How much a check looked at: data files whose bytes were compared, and those of which no checksum is on record."""

    compared: int = 0
    unrecorded: int = 0


def list_tables(reader: StorageReader) -> Iterator[TableSummary]:
    """Yield a summary of each table, by name."""
    for schema, table in reader.tables():
        files = reader.data_files(schema, table)
        dates = sorted(directory.date for directory, _, _ in files if directory.date)
        last = sum(number for _, _, number in files)
        yield TableSummary(schema, table, len(reader.versions(schema, table)), last, *(dates[:1] or [""]), *(dates[-1:] or [""]))


def check_target(
    target: ObjectTarget, settings: StorageSinkSettings, *, read_rows: bool = True, extent: Extent | None = None
) -> Iterator[Finding]:
    """Yield everything that is wrong with a target, schema files first; without ``read_rows`` no data file is opened.

    ``extent`` is told what was compared.
    """
    layout = settings.layout
    extent = extent or Extent()
    try:
        paths, strangers = target.own_paths()
    except PenstockError as error:
        if error.code != "SINK_UNWRITABLE":
            raise
        yield Finding("/", error.detail)
        return
    yield from (Finding(path, what) for path, what in strangers)
    own = OWNER_PATH in paths
    yield from _check_checkpoint(target)
    versions: dict[tuple[str, str, int], TableSchema] = {}
    numbers: dict[tuple[DataDir, str], set[int]] = defaultdict(set)
    indexed: dict[tuple[DataDir, str], int] = {}
    for path in paths:
        name = parse_schema_path(path)
        data, index = layout.parse_data(path), layout.parse_index(path)
        try:
            if name is not None:
                file = parse_schema_file(target.get(path, SMALL_BYTES_MAX), path)
                check_schema_name(file, name, path)
                columns = stand_ins(file.columns or (), as_names=settings.data_format.has_element_names)
                versions[name.schema, name.table, name.version] = file.to_table(columns)
            elif data is not None:
                numbers[data.dir, data.dispatcher].add(data.number)
            elif index is not None:
                indexed[index.dir, index.dispatcher] = parse_index(layout, target.get(path, SMALL_BYTES_MAX), path, index.dispatcher)
            elif path != METADATA_PATH and not path.startswith(f"{OWNER_DIR}/"):
                yield Finding(path, "not a file of this layout and these settings")
        except PenstockError as error:
            yield Finding(path, error.detail.removeprefix(f"{path}: "))
        except FileNotFoundError:
            yield Finding(path, "went away while it was looked at")
    yield from _check_transactions(target, paths)
    checksums: dict[str, FileChecksum] = {}
    yield from _read_checksums(target, paths if read_rows else (), checksums)
    for key in sorted({*numbers, *indexed}):
        found = numbers.get(key, set()), indexed.get(key, 0)
        table = versions.get((key[0].schema, key[0].table, key[0].version))
        yield from _check_directory(settings, key, *found, described=table is not None)
        if read_rows:
            yield from _check_files(target, settings, key, *found, table, checksums, extent, own)


def _check_checkpoint(target: ObjectTarget) -> Iterator[Finding]:
    try:
        checkpoint = target.find(METADATA_PATH)
        if checkpoint is None:
            yield Finding(METADATA_PATH, "there is none, so readers read nothing")
        else:
            parse_checkpoint(checkpoint)
    except PenstockError as error:
        yield Finding(METADATA_PATH, error.detail)


def _read_checksums(target: ObjectTarget, paths: Iterable[str], checksums: dict[str, FileChecksum]) -> Iterator[Finding]:
    """Read what was recorded of data files, by path; yield what is wrong with the records."""
    for path in paths:
        if parse_record_path(path) is None:
            continue
        try:
            checksums.update((file.path, file) for file in parse_record(target.get(path, SMALL_BYTES_MAX), path))
        except PenstockError as error:
            yield Finding(path, error.detail.removeprefix(f"{path}: "))
        except FileNotFoundError:
            yield Finding(path, "went away while it was looked at")


def _check_transactions(target: ObjectTarget, paths: Sequence[str]) -> Iterator[Finding]:
    """Yield what is wrong with the indexes of transactions: damage, files that are not there, transactions that are in two of them."""
    there, reached_ts = set(paths), 0
    for path in sorted(path for path in paths if (found := parse_transactions_path(path)) is not None and found[1]):
        try:
            index = parse_transaction_index(target.get(path, DECODED_BYTES_MAX), path)
        except PenstockError as error:
            yield Finding(path, error.detail.removeprefix(f"{path}: "))
            continue
        except FileNotFoundError:
            yield Finding(path, "went away while it was looked at")
            continue
        missing = [file.path for file in index.files if file.path not in there]
        if missing:
            yield Finding(missing[0], f"missing, though {path} names it" + (f", and {len(missing) - 1} others" if len(missing) > 1 else ""))
        if index.parts.height and int(index.parts[TS][0]) <= reached_ts:
            yield Finding(path, "transactions that the window before has too")
        reached_ts = index.to_ts


def _check_directory(
    settings: StorageSinkSettings, key: tuple[DataDir, str], numbers: set[int], last: int, *, described: bool
) -> Iterator[Finding]:
    directory, dispatcher = key
    layout = settings.layout
    if not described:
        yield Finding(layout.dir_path(directory), "no schema file describes this version")
    for first, gap_end in _gaps(numbers, last):
        more = f", and so are the {gap_end - first} after it" if gap_end > first else ""
        yield Finding(layout.data_path(DataPath(directory, dispatcher, first)), f"missing, though the index names it{more}")
    for number in sorted(n for n in numbers if n > last):
        yield Finding(layout.data_path(DataPath(directory, dispatcher, number)), "no index names it")


def _check_files(
    target: ObjectTarget,
    settings: StorageSinkSettings,
    key: tuple[DataDir, str],
    numbers: set[int],
    last: int,
    table: TableSchema | None,
    checksums: Mapping[str, FileChecksum],
    extent: Extent,
    own: bool,
) -> Iterator[Finding]:
    if table is None:
        return
    directory, dispatcher = key
    layout = settings.layout
    reader = StorageReader(target, settings, look=False, file_bytes_max=_file_bytes_max(settings))
    before = 0
    for number in sorted(n for n in numbers if n <= last):
        path = layout.data_path(DataPath(directory, dispatcher, number))
        try:
            content = reader.content(path)
            recorded = checksums.get(path)
            if recorded is None:
                extent.unrecorded += 1
            elif recorded.checksum != checksum_of(content):
                yield Finding(path, f"its {len(content)} bytes are not the {recorded.nbytes} that were written")
                continue
            else:
                extent.compared += 1
            ts = reader.decode(content, path, table)[COMMIT_TS]
        except PenstockError as error:
            yield Finding(path, error.detail.removeprefix(f"{path}: "))
            continue
        if len(ts) == 0 or not settings.data_format.has_commit_ts:
            continue
        if not ts.is_sorted():
            yield Finding(path, f"row {_first_drop(ts) + 1}: its commit ts is smaller than that of the row before")
        elif int(ts[0]) < before:
            yield Finding(path, "row 1: its commit ts is smaller than that of the file before")
        before = int(ts[-1])
        # Other writers divide files by the date of writing.
        if own and {layout.date_text(int(ts[0])), layout.date_text(int(ts[-1]))} != {directory.date}:
            yield Finding(path, "rows of another commit date")


def _gaps(numbers: set[int], last: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of numbers up to the last one that are not there."""
    before = 0
    for number in [*sorted(n for n in numbers if n <= last), last + 1]:
        if number > before + 1:
            yield before + 1, number - 1
        before = number


def _file_bytes_max(settings: StorageSinkSettings) -> int:
    """Return more than a file of these settings can have: a file is cut behind its size, at the next row."""
    return DECODED_BYTES_MAX if settings.transaction_atomicity is Atomicity.TABLE else 4 * settings.file_size + SMALL_BYTES_MAX


def _first_drop(ts: pl.Series) -> int:
    values = ts.to_numpy()
    return int((values[1:] < values[:-1]).argmax()) + 1
