"""One Iceberg table, as of one version of its metadata: what it holds, and its next snapshot by pyiceberg.

A commit sets the window's end, the last DDL's ts and the epoch as properties of snapshot and table, with files and columns in one
transaction of the catalog. Columns have the ids that tasks write into files. Invariant: pyiceberg tries no commit again by itself, so
whoever comes second sees what the first one did. Runs beside the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update import AddSchemaUpdate, AssertCurrentSchemaId, SetCurrentSchemaUpdate
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from penstock.files.buckets import cause_of
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.sink.iceberg.types import arrow_schema, data_file, field_id, iceberg_schema, is_promoted, lake_file
from penstock.sink.lake.data_files import LakeFile
from penstock.sink.lake.format import LakeConflict, Mark

TABLE_PROPERTY = "penstock.table"
_MARKS = ("penstock.window", "penstock.ddl", "penstock.epoch")


class IcebergVersion:
    """An Iceberg table as of one version; implements ``penstock.sink.lake.format.TableVersion``."""

    def __init__(self, opened: Table, root: str) -> None:
        self._opened = opened
        self._root = root
        properties = opened.properties
        self.mark = Mark(*(int(properties.get(name, "0")) for name in _MARKS))
        noted = properties.get(TABLE_PROPERTY)
        self.table = TableSchema.from_json(noted) if noted else None
        self.schema = arrow_schema(opened.schema())
        self._files: dict[str, Any] = {}

    def files(self) -> list[LakeFile]:
        """Return the data files."""
        schema = self._opened.schema()
        tasks = [task.file for task in self._opened.scan().plan_files()]
        found = [(lake_file(file, self._root, schema), file) for file in tasks]
        self._files = {file.path: known for file, known in found}
        return [file for file, _ in found]

    def commit(self, mark: Mark, added: Sequence[LakeFile], removed: Sequence[LakeFile]) -> None:
        """Make the next version."""
        with commits():
            changing = self._opened.transaction()
            self._change_files(changing, mark, added, [self._files[f.path] for f in removed])
            changing.set_properties(_told(mark))
            changing.commit_transaction()

    def replace(self, mark: Mark, added: Sequence[LakeFile], table: TableSchema, schema: pa.Schema) -> None:
        """Make a version that has these files alone, and these columns."""
        self.files()
        with commits():
            changing = self._opened.transaction()
            self._set_schema(changing, schema)
            self._change_files(changing, mark, added, list(self._files.values()))
            changing.set_properties({**_told(mark), TABLE_PROPERTY: table.to_json().decode()})
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

    def _set_schema(self, changing: Transaction, schema: pa.Schema) -> None:
        metadata = self._opened.metadata
        wanted = iceberg_schema(schema, max(s.schema_id for s in metadata.schemas) + 1)
        if wanted.fields != self._opened.schema().fields:
            changing._apply(
                (AddSchemaUpdate(schema=wanted), SetCurrentSchemaUpdate(schema_id=-1)),
                (AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),),
            )

    def _change_files(self, changing: Transaction, mark: Mark, added: Sequence[LakeFile], removed: Sequence[Any]) -> None:
        if not added and not removed:
            return
        making = changing.update_snapshot(_told(mark))
        schema, version = changing.table_metadata.schema(), changing.table_metadata.format_version
        with making.overwrite() if removed else making.fast_append() as snapshot:
            for file in added:
                snapshot.append_data_file(data_file(file, self._root, schema, version))
            for known in removed:
                snapshot.delete_data_file(known)


@contextmanager
def commits() -> Iterator[None]:
    """Tell what pyiceberg and the catalog refuse in the words of the lake."""
    try:
        yield
    except (CommitFailedException, ValidationException, IntegrityError):
        raise LakeConflict from None
    except (SQLAlchemyError, OSError) as error:
        raise PenstockError("SINK_UNAVAILABLE", f"Iceberg's catalog: {cause_of(error)}") from None


def _told(mark: Mark) -> dict[str, str]:
    return {name: str(value) for name, value in zip(_MARKS, mark, strict=True)}
