"""Tables as of the checkpoint: schema files, partition records and rows in the reading order of the document.

It knows "Reading in order" with its three sections, and runs in tests. A table with a key is a map, one without is a bag in which
equal rows count; each row knows the physical partition from whose directory it came.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from testing.consumer import layout
from testing.consumer.files import Change, Settings, changes
from testing.consumer.queries import column_changes, table_rename
from testing.consumer.values import Column, Value, column_of, converted, shown_by_older_rows

CREATE_DATABASE, DROP_DATABASE, CREATE_TABLE, DROP_TABLE, TRUNCATE, RENAME, EXCHANGE = 1, 2, 3, 4, 11, 14, 42
EMPTYING = {CREATE_TABLE, TRUNCATE, EXCHANGE}
Row = dict[str, Value]
Name = tuple[str, str]


@dataclass
class Held:
    """A row of a table and the physical partition that it came from."""

    row: Row
    home: int | None


@dataclass
class Table:
    """One table while its history is applied."""

    columns: list[Column] = field(default_factory=list)
    key: tuple[str, ...] = ()
    rows: dict[tuple[Value, ...], list[Held]] = field(default_factory=dict)
    live: frozenset[int] | None = None
    heirs: dict[int, frozenset[int]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The columns whose values rows carry."""
        return [column.name for column in self.columns if not column.virtual]

    def bag(self) -> Counter[tuple[Value, ...]]:
        """Count all rows, values in the order of `names`, with how often each is there."""
        return Counter(tuple(held.row[name] for name in self.names) for same in self.rows.values() for held in same)

    def take_structure(self, file: layout.SchemaFile) -> None:
        """Take the columns of this file from here on, and the rows brought into them."""
        columns = [column_of(each) for each in file.content["TableColumns"]]
        origin = _origins(self.columns, columns, file.query)
        kept = [held for same in self.rows.values() for held in same]
        for held in kept:
            held.row = {
                new.name: shown_by_older_rows(new) if origin[new.name] is None else converted(held.row[old.name], old, new)
                for new in columns
                if not new.virtual
                for old in [origin[new.name] or new]
            }
        self.columns, self.key = columns, _key(columns, file.content.get("UniqueKeys", []))
        self.rows = {}
        for held in kept:
            # Rows that a new key cannot tell apart are one.
            same = self.rows.setdefault(self.identity(held.row), [])
            if not self.key or not same:
                same.append(held)

    def identity(self, row: Row) -> tuple[Value, ...]:
        """Tell what a row is known by: its key, or all its values."""
        return tuple(row[name] for name in self.key or self.names)

    def apply(self, change: Change, home: int | None) -> None:
        """Apply a change that stands in the directory of a partition."""
        identity = self.identity(change.values)
        same = self.rows.setdefault(identity, [])
        if change.operation == "D":
            if same:
                same.pop(next((at for at, held in enumerate(same) if held.home == home), 0))
        else:
            if self.key:
                same.clear()
            same.append(Held({name: change.values[name] for name in self.names}, home))
        if not same:
            del self.rows[identity]

    def take_partitions(self, record: layout.PartitionRecord) -> None:
        """Take the partitions of the table from here on: rows of others leave."""
        self.live = record.live
        if record.inherits:
            self.heirs.update(dict.fromkeys(record.dropped, record.made))
        for identity, same in list(self.rows.items()):
            self.rows[identity] = [held for held in same if self.holds(held.home)]
            if not self.rows[identity]:
                del self.rows[identity]

    def holds(self, home: int | None) -> bool:
        """Whether rows of a partition's directory belong to the table."""
        if home is None or self.live is None or home in self.live:
            return True
        return any(self.holds(heir) for heir in self.heirs.get(home, ()))


@dataclass
class Target:
    """What a target says as of its checkpoint."""

    checkpoint: int
    not_covered: dict[str, str]
    tables: dict[Name, Table] = field(default_factory=dict)
    ddls: list[layout.SchemaFile] = field(default_factory=list)


def _origins(before: list[Column], after: list[Column], query: str) -> dict[str, Column | None]:
    """Find for each new column the one that it goes on from, None where it begins anew."""
    with_ids = all(column.id is not None for column in [*before, *after])
    if with_ids:
        by_id = {column.id: column for column in before}
        found = {column.name: by_id.get(column.id) for column in after}
    else:
        renamed, anew = column_changes(query)
        by_name = {column.name.casefold(): column for column in before}
        moved = set(renamed.values()) - set(renamed)
        found = {}
        for column in after:
            name = column.name.casefold()
            source = renamed.get(name, name)
            found[column.name] = None if name in anew or (name not in renamed and name in moved) else by_name.get(source)
    return {name: None if column is not None and column.virtual else column for name, column in found.items()}


def _key(columns: list[Column], unique: list[list[str]]) -> tuple[str, ...]:
    primary = tuple(column.name for column in columns if column.primary)
    if primary:
        return primary
    required = {column.name for column in columns if not column.nullable and not column.virtual}
    return next((tuple(names) for names in unique if required.issuperset(names)), ())


def read_target(root: Path, settings: Settings | None = None) -> Target:
    """Read all tables of the target as of its checkpoint."""
    settings = settings or Settings()
    checkpoint, not_covered = layout.checkpoint(root)
    target = Target(checkpoint, not_covered)
    files = [file for file in layout.schema_files(root) if file.version <= checkpoint]
    records = [record for record in layout.partition_records(root) if record.version <= checkpoint]
    indexes = [index for index in layout.indexes(root, settings.date_separator) if index.version <= checkpoint]
    versions = {file.version for file in files} | {record.version for record in records} | {index.version for index in indexes}
    for version in sorted(versions):
        _structures(target, [file for file in files if file.version == version])
        for record in records:
            if record.version == version and (record.schema, record.table) in target.tables:
                target.tables[record.schema, record.table].take_partitions(record)
        _rows(target, [index for index in indexes if index.version == version], settings)
    return target


def _structures(target: Target, files: list[layout.SchemaFile]) -> None:
    """Apply the schema files of one version: renames first."""
    if len({(file.schema, file.table) for file in files}) < len(files):
        raise ValueError(f"two schema files of one name and version: {files}")
    renames = [file for file in files if file.kind == RENAME]
    taken = {}
    for file in renames:
        old, new = table_rename(file.query)
        taken[new] = target.tables.pop(old)
    target.tables.update(taken)
    for file in [*renames, *(file for file in files if file.kind != RENAME)]:
        if file.query:
            target.ddls.append(file)
        _structure(target, file)


def _structure(target: Target, file: layout.SchemaFile) -> None:
    name = (file.schema, file.table)
    if file.kind == DROP_DATABASE:
        for each in [each for each in target.tables if each[0] == file.schema]:
            del target.tables[each]
    elif file.kind == DROP_TABLE:
        target.tables.pop(name, None)
    elif file.kind != CREATE_DATABASE:
        if file.kind in EMPTYING:
            target.tables[name] = Table()
        target.tables.setdefault(name, Table()).take_structure(file)


def _rows(target: Target, indexes: list[layout.Index], settings: Settings) -> None:
    """Apply the rows of one version's directories: date by date, merged by commit ts, deletes first."""
    place = attrgetter("schema", "table", "date")
    for (schema, name, _), group in groupby(sorted(indexes, key=place), key=place):
        table = target.tables[schema, name]
        found = [(change, index.partition) for index in group for change in _changes(index, table, settings)]
        for change, home in sorted(found, key=lambda each: (each[0].ts, each[0].operation != "D")):
            if change.ts <= target.checkpoint and table.holds(home):
                table.apply(change, home)


def _changes(index: layout.Index, table: Table, settings: Settings) -> Iterator[Change]:
    for path in index.files:
        yield from changes(path, index.schema, index.table, table.columns, settings)
