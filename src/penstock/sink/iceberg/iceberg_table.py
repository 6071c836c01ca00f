"""One Iceberg table, as of one version of its metadata: what it holds, and its next snapshot by pyiceberg.

A commit sets the window's end, the last DDL's ts and the epoch as properties of snapshot and table, with files and columns in one
transaction of the catalog. Columns have the ids that tasks write into files. Invariant: pyiceberg tries no commit again by itself, so
whoever comes second sees what the first one did. Runs beside the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
)

from penstock.model.table import TableSchema
from penstock.sink.iceberg.catalogs import commits
from penstock.sink.iceberg.types import (
    arrow_schema,
    data_file,
    field_id,
    iceberg_schema,
    is_promoted,
    is_spec_of,
    lake_file,
    partition_spec,
)
from penstock.sink.lake.data_files import LakeFile
from penstock.sink.lake.format import Mark
from penstock.sink.lake.partitions.division import PartitionField

TABLE_PROPERTY = "penstock.table"
_PARTITION_ID = 1000
"""The first id of a partition's field, by the specification."""
MADE = "penstock.made"
"""The property of a table that the feed has made, from its first moment on."""
_SNAPSHOT = "penstock.snapshot"
"""The property that has the snapshot which the feed made last."""
_MARKS = ("penstock.window", "penstock.ddl", "penstock.epoch")


class IcebergVersion:
    """An Iceberg table as of one version; implements ``penstock.sink.lake.format.TableVersion``."""

    def __init__(self, opened: Table, root: str) -> None:
        self._opened = opened
        self._root = root
        properties = opened.properties
        self.mark = Mark(*(int(properties.get(name, "0")) for name in _MARKS))
        self.is_made_here = MADE in properties
        noted = properties.get(TABLE_PROPERTY)
        self.table = TableSchema.from_json(noted) if noted else None
        self.schema = arrow_schema(opened.schema())
        self.derived = frozenset[str]()
        self._files: dict[str, Any] = {}

    def files(self) -> list[LakeFile]:
        """Return the data files."""
        schema = self._opened.schema()
        tasks = [task.file for task in self._opened.scan().plan_files()]
        found = [(lake_file(file, self._root, schema, self._opened.specs()), file) for file in tasks]
        self._files = {file.path: known for file, known in found}
        return [file for file, _ in found]

    def commit(self, mark: Mark, added: Sequence[LakeFile], removed: Sequence[LakeFile]) -> None:
        """Make the next version."""
        with commits():
            changing = self._opened.transaction()
            made = self._change_files(changing, mark, added, [self._files[f.path] for f in removed])
            changing.set_properties(_told(mark) | made)
            changing.commit_transaction()

    def replace(
        self, mark: Mark, added: Sequence[LakeFile], table: TableSchema, schema: pa.Schema, fields: Sequence[PartitionField]
    ) -> None:
        """Make a version that has these files alone, and these columns and partitions."""
        self.files()
        with commits():
            changing = self._opened.transaction()
            self._set_schema(changing, schema, fields)
            made = self._change_files(changing, mark, added, list(self._files.values()))
            changing.set_properties({**_told(mark), **made, TABLE_PROPERTY: table.to_json().decode()})
            changing.commit_transaction()

    def rewrite(self, added: Sequence[LakeFile], removed: Sequence[LakeFile]) -> None:
        """Make the next version, which has the same rows."""
        with commits():
            changing = self._opened.transaction()
            self._change_files(changing, self.mark, added, [self._files[f.path] for f in removed])
            changing.commit_transaction()

    def alter(self, mark: Mark, table: TableSchema, schema: pa.Schema) -> None:
        """Change the columns."""
        with commits():
            changing = self._opened.transaction()
            self._set_schema(changing, schema)
            changing.set_properties({**_told(mark), TABLE_PROPERTY: table.to_json().decode()})
            changing.commit_transaction()

    def is_free(self, before: TableSchema, after: TableSchema, schema: pa.Schema) -> bool:
        """Return whether files are read under the new columns by Iceberg's own rules: all but some changes of types."""
        there = {field_id(f): f.type for f in self.schema}
        return all(field_id(f) not in there or is_promoted(there[field_id(f)], f.type) for f in schema)

    def is_partitioned_by(self, fields: Sequence[PartitionField]) -> bool:
        """Return whether these are its partitions."""
        return is_spec_of(self._opened.spec(), fields)

    def is_set_back(self) -> bool:
        """Return whether the snapshot that the feed made last is none that the current one comes from."""
        noted = int(self._opened.properties.get(_SNAPSHOT, "0"))
        metadata, here = self._opened.metadata, self._opened.current_snapshot()
        while noted and here is not None and here.snapshot_id != noted:
            if here.parent_snapshot_id is None:
                return True
            here = metadata.snapshot_by_id(here.parent_snapshot_id)
        # A parent that has expired tells nothing, unless the feed's own is there still.
        return bool(noted) and here is None and metadata.snapshot_by_id(noted) is not None

    def keeps_partitions(self, schema: pa.Schema) -> bool:
        """Return whether all columns are left that partitions come from: pyiceberg cannot tell files apart without."""
        return {f.source_id for f in self._opened.spec().fields} <= {field_id(f) for f in schema}

    def _set_schema(self, changing: Transaction, schema: pa.Schema, fields: Sequence[PartitionField] | None = None) -> None:
        """Change columns, and partitions where some are given: together, because the ones may need the others."""
        metadata = self._opened.metadata
        updates, needed = list[Any](), list[Any]()
        wanted = iceberg_schema(schema, max(s.schema_id for s in metadata.schemas) + 1)
        if wanted.fields != self._opened.schema().fields:
            updates += [AddSchemaUpdate(schema=wanted), SetCurrentSchemaUpdate(schema_id=-1)]
            needed.append(AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id))
        if fields is not None and not self.is_partitioned_by(fields):
            first_id = max(metadata.last_partition_id or 0, _PARTITION_ID - 1) + 1
            spec = partition_spec(fields, max(s.spec_id for s in metadata.partition_specs) + 1, first_id)
            updates += [AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=-1)]
            needed.append(AssertDefaultSpecId(default_spec_id=metadata.default_spec_id))
        if updates:
            changing._apply(tuple(updates), tuple(needed))

    def _change_files(self, changing: Transaction, mark: Mark, added: Sequence[LakeFile], removed: Sequence[Any]) -> dict[str, str]:
        """Change the files; return the property that has the snapshot, where one came of it."""
        if not added and not removed:
            return {}
        making = changing.update_snapshot(_told(mark))
        metadata = changing.table_metadata
        with making.overwrite() if removed else making.fast_append() as snapshot:
            for file in added:
                known = data_file(file, self._root, metadata.schema(), metadata.spec(), metadata.format_version)
                snapshot.append_data_file(known)
            for known in removed:
                snapshot.delete_data_file(known)
            return {_SNAPSHOT: str(snapshot.snapshot_id)}


def _told(mark: Mark) -> dict[str, str]:
    return {name: str(value) for name, value in zip(_MARKS, mark, strict=True)}
