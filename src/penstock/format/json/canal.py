"""The Canal-JSON encoder: paired change rows to one message per row.

Keys stand in the order of the best-known writer: id, database, table, pkNames, isDdl, type, es, ts, sql, sqlType, mysqlType, old, data,
``_tidb``. Values are strings or null. Two things differ from that writer on purpose: ``ts``, its wall clock, is the commit time here, so
that a repeated window gives the same bytes, and ``mysqlType`` stands in column order. Invariant: bytes depend on rows, table and settings
alone; the encoding of rows in two parts is the concatenation of the parts' encodings. Runs on executors.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.ddl.type_names import mysql_type
from penstock.format.csv.dialect import row_columns
from penstock.format.json.escaping import escape_text
from penstock.format.json.rows import ALL_OPS, MessageSheet, Surrounded
from penstock.format.old_values import OLD, old_name
from penstock.format.protocols import CanalSettings
from penstock.format.sheet_kernels import Space
from penstock.kernels.jit import U8
from penstock.model.batch import Op
from penstock.model.table import COMMIT_TS, KEY, OP, Column, TableSchema
from penstock.model.timestamp import LOGICAL_BITS
from penstock.model.types import BINARY_KINDS, FLOAT_KINDS, ColumnType, TypeKind

_UPDATES = 1 << Op.UPDATE
_DELETES = 1 << Op.DELETE
_TYPES = [b"INSERT", b"UPDATE", b"DELETE"]

_SQL_TYPES = {
    TypeKind.TINYINT: -6,
    TypeKind.SMALLINT: 5,
    TypeKind.MEDIUMINT: 4,
    TypeKind.INT: 4,
    TypeKind.BIGINT: -5,
    TypeKind.FLOAT: 7,
    TypeKind.DOUBLE: 8,
    TypeKind.DECIMAL: 3,
    TypeKind.CHAR: 1,
    TypeKind.VARCHAR: 12,
    TypeKind.DATE: 91,
    TypeKind.DATETIME: 93,
    TypeKind.TIMESTAMP: 93,
    TypeKind.TIME: 92,
    TypeKind.YEAR: 12,
    TypeKind.ENUM: 4,
    TypeKind.SET: -7,
    TypeKind.BIT: -7,
    TypeKind.JSON: 12,
    TypeKind.VECTOR: 12,
}
_SQL_TYPE_TEXT, _SQL_TYPE_BINARY = 2005, 2004
_PROMOTED = {TypeKind.TINYINT: (127, 5), TypeKind.SMALLINT: (32_767, 4), TypeKind.INT: (2**31 - 1, -5), TypeKind.BIGINT: (2**63 - 1, 3)}
"""Unsigned kinds whose larger values have another Java type: the largest value of the smaller one, and the larger one."""


def encode_into(table: TableSchema, records: pa.RecordBatch, settings: CanalSettings, out: Space, around: Surrounded | None = None) -> None:
    """Append paired rows as messages, each with its line end, inside of something larger where that is given."""
    if records.num_rows == 0:
        return
    ops = records.column(OP).to_numpy(zero_copy_only=True)
    commit_ts = records.column(COMMIT_TS).to_numpy(zero_copy_only=True)
    sheet = MessageSheet(ops)
    if around is not None:
        around.lead(sheet)
    columns = row_columns(table)
    names = [escape_text(c.name) for c in columns]
    keys = b",".join(name for name, c in zip(names, columns, strict=True) if c.primary_key)
    sheet.constant(b'{"id":0,"database":%s,"table":%s,' % (escape_text(table.schema), escape_text(table.table)))
    sheet.constant(b'"pkNames":[%s],"isDdl":false,"type":"' % keys)
    sheet.choice(ops, _TYPES)
    moments = pa.array(commit_ts >> np.uint64(LOGICAL_BITS))
    sheet.constant(b'","es":')
    sheet.integers(moments, quoted=False)
    sheet.constant(b',"ts":')
    sheet.integers(moments, quoted=False)
    sheet.constant(b',"sql":"","sqlType":{')
    message = _Message(sheet, table, names, records, settings)
    message.sql_types()
    sheet.constant(b'},"mysqlType":{')
    message.mysql_types()
    sheet.constant(b'},"old":')
    message.old_values()
    sheet.constant(b',"data":[{')
    message.data()
    sheet.constant(b"}]")
    if settings.enable_tidb_extension:
        sheet.constant(b',"_tidb":{"commitTs":')
        sheet.integers(records.column(COMMIT_TS), quoted=False)
        if settings.output_row_key:
            sheet.constant(b',"rowkey":')
            sheet.words(pl.Series(records.column(KEY)).bin.encode("base64").to_arrow(compat_level=pl.CompatLevel.oldest()))
        sheet.constant(b"}")
    sheet.constant(b"}" + (b"" if around is None else around.tail) + settings.line_end)
    sheet.render_into(out)


class _Message:
    """The parts of a message that go over the table's columns."""

    def __init__(
        self, sheet: MessageSheet, table: TableSchema, names: list[bytes], records: pa.RecordBatch, settings: CanalSettings
    ) -> None:
        self._sheet = sheet
        self._columns = list(zip(row_columns(table), names, strict=True))
        self._records = records
        self._settings = settings
        # A table without a key keeps all columns in its deletes: they could not be applied otherwise.
        self._handle = frozenset(c.id for c in table.handle_columns)
        self._narrow_deletes = settings.delete_only_output_handle_key_columns and bool(self._handle)

    def sql_types(self) -> None:
        for at, (column, name) in enumerate(self._columns):
            code, ops = sql_type(column.type), self._ops(column)
            self._key(name, at, ops)
            promoted = self._promoted(column)
            if promoted is None:
                self._sheet.constant(b"%d" % code, ops)
            else:
                self._sheet.choice(promoted, [b"%d" % code, b"%d" % _PROMOTED[column.type.kind][1]], ops)

    def mysql_types(self) -> None:
        for at, (column, name) in enumerate(self._columns):
            ops = self._ops(column)
            self._key(name, at, ops)
            self._sheet.constant(escape_text(mysql_type(column.type, full=self._settings.content_compatible)), ops)

    def old_values(self) -> None:
        flags = np.ascontiguousarray(self._records.column(OLD).to_numpy(zero_copy_only=True))
        if not flags.any():
            self._sheet.constant(b"null")
            return
        self._sheet.constant(b"[{", _UPDATES, flags)
        for at, (column, name) in enumerate(self._columns):
            values = self._records.column(old_name(column))
            if self._settings.only_updated:
                changed = flags & _changed(self._records.column(column.field_name), values)
                self._sheet.constant(name + b":", _UPDATES, changed, comma=True)
                put_value(self._sheet, column, values, _UPDATES, changed)
            else:
                self._sheet.constant((b"," if at else b"") + name + b":", _UPDATES, flags)
                put_value(self._sheet, column, values, _UPDATES, flags)
        self._sheet.constant(b"}]", _UPDATES, flags)
        self._sheet.constant(b"null", ALL_OPS, (1 - flags).astype(np.uint8))

    def data(self) -> None:
        for at, (column, name) in enumerate(self._columns):
            ops = self._ops(column)
            self._key(name, at, ops)
            put_value(self._sheet, column, self._records.column(column.field_name), ops, None)

    def _ops(self, column: Column) -> int:
        return ALL_OPS & ~_DELETES if self._narrow_deletes and column.id not in self._handle else ALL_OPS

    def _key(self, name: bytes, at: int, ops: int) -> None:
        if self._narrow_deletes:
            self._sheet.constant(name + b":", ops, comma=True)
        else:
            self._sheet.constant((b"," if at else b"") + name + b":", ops)

    def _promoted(self, column: Column) -> U8 | None:
        """Return 1 for rows whose value needs the larger Java type, or None where no row does."""
        if not column.type.unsigned or column.type.kind not in _PROMOTED:
            return None
        values = self._records.column(column.field_name)
        limit = _PROMOTED[column.type.kind][0]
        if (pc.max(values).as_py() or 0) <= limit:
            return None
        beyond = pc.greater(values, pa.scalar(limit, values.type)).fill_null(False)
        flags: U8 = beyond.to_numpy(zero_copy_only=False).astype(np.uint8)
        return flags


def put_value(sheet: MessageSheet, column: Column, values: pa.Array, ops: int, flags: U8 | None) -> None:
    """Add a column's values to a sheet as Canal-JSON renders them: strings, numbers of ENUM and SET, bytes as ISO-8859-1."""
    if column.type.kind in FLOAT_KINDS:
        sheet.floats(values, ops, flags)
    elif pa.types.is_integer(values.type):
        sheet.integers(values, ops, flags)
    else:
        sheet.text(values, ops, flags)


def sql_type(ctype: ColumnType) -> int:
    """Return the Java SQL type of a column whose values need no larger one."""
    if ctype.kind in BINARY_KINDS:
        return _SQL_TYPE_BINARY
    return _SQL_TYPES.get(ctype.kind, _SQL_TYPE_TEXT)


def _changed(new: pa.Array, old: pa.Array) -> U8:
    """Return 1 where two columns differ, NULL being equal to NULL."""
    differs = pc.not_equal(new, old).fill_null(False)
    one_null = pc.xor(new.is_null(), old.is_null())
    flags: U8 = pc.or_(differs, one_null).to_numpy(zero_copy_only=False).astype(np.uint8)
    return flags
