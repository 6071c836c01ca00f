"""A row of one table version shown under another: what its columns hold there.

Columns are matched by ``Column.id``, so a renamed column goes on, and one that was dropped and added again under its name begins anew. A
column that the row does not have shows its initial default; one whose type changed since is converted, and a value that no conversion
understands shows NULL. Invariant: every reader (store, replay, data server) shows the same, because all come here.

The initial default is the column's own where the source tells it, else the default of the version that added the column
(``shown``), else its present one. A default that is computed (``CURRENT_TIMESTAMP(3)``, ``uuid()``) is no constant and shows NULL, also in
a column that cannot be NULL: what those rows hold only the table itself knows. A NOT NULL column without a default shows its type's
implicit value, as the server fills it in. Runs anywhere.
"""

from __future__ import annotations

import decimal
import functools
import re
from collections.abc import Iterable

import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.rows.elements import ELEMENT_KINDS, element_names, element_values, same_elements
from penstock.model.table import Column, SchemaHistory, TableSchema
from penstock.model.types import BINARY_KINDS, TIME_KINDS, ColumnType, TypeKind

_DIGITS_MAX = 100
_MOMENT = re.compile(r"-?\d.*", re.DOTALL)
_CALL = re.compile(
    r"(current_(timestamp|date|time|user)|now|localtime(stamp)?|utc_\w+|cur(date|time)|sysdate|uuid(_short)?|rand)\(.*\)", re.I
)
_BITS = re.compile(r"(?:b'([01]*)'|0b([01]+))", re.IGNORECASE)
_HEX = re.compile(r"(?:x'((?:[0-9a-f]{2})*)'|0x((?:[0-9a-f]{2})+)|\\x((?:[0-9a-f]{2})*))", re.IGNORECASE)
_TRUTHS = {"TRUE": "1", "FALSE": "0"}
_IMPLICIT = {
    TypeKind.DATE: "0000-00-00",
    TypeKind.DATETIME: "0000-00-00 00:00:00",
    TypeKind.TIMESTAMP: "0000-00-00 00:00:00",
    TypeKind.TIME: "00:00:00",
    TypeKind.YEAR: "0000",
    TypeKind.BIT: "b'0'",
    TypeKind.SET: "",
    TypeKind.JSON: "null",
}


def default_of(column: Column) -> pa.Scalar:
    """Return what a row from before a column shows in it, as a value of the column's Arrow type."""
    text = _initial_text(column)
    try:
        return pa.scalar(None, column.type.arrow()) if text is None else constant(column, text)
    except ValueError:
        return pa.scalar(None, column.type.arrow())


def carried(before: TableSchema, after: TableSchema) -> TableSchema:
    """Return a version whose columns have the initial defaults that they had in the one before; those of new columns are fixed here."""
    known = {c.id: c for c in before.columns}
    columns = []
    for column in after.columns:
        initial = known[column.id].initial_default if column.id in known else _initial_text(column)
        is_told = column.initial_default is not msgspec.UNSET
        columns.append(column if is_told else msgspec.structs.replace(column, initial_default=initial))
    return msgspec.structs.replace(after, columns=tuple(columns))


def shown(versions: Iterable[TableSchema]) -> TableSchema:
    """Return the last of a table's versions with the initial defaults of its columns, as far as the versions tell them."""
    return functools.reduce(carried, versions)


def shown_at(history: SchemaHistory, ts: int) -> TableSchema:
    """Return the version that holds at a ts, with the initial defaults of its columns."""
    at = history.at(ts).version
    return shown(v for v in history.versions() if v.version <= at)


def project(records: pa.RecordBatch, table: TableSchema, source: TableSchema | None = None) -> list[pa.Array]:
    """Return the columns of a table version for rows whose columns are named by id.

    ``source`` is the version of the rows. Without it, values whose Arrow type stayed are taken as they are.
    """
    present = set(records.schema.names)
    olds = {c.id: c for c in source.columns} if source is not None else {}
    arrays = []
    for column in table.columns:
        if column.field_name in present:
            arrays.append(converted(records.column(column.field_name), olds.get(column.id), column))
        else:
            arrays.append(pa.repeat(default_of(column), records.num_rows))
    return arrays


def is_converted(old: Column, new: Column) -> bool:
    """Return whether values of one version of a column differ from what another version shows."""
    before, after = old.type, new.type
    if before.kind in ELEMENT_KINDS or after.kind in ELEMENT_KINDS:
        return before.kind != after.kind or not same_elements(old, new)
    if after.kind in TIME_KINDS or after.kind is TypeKind.DECIMAL:
        return before.kind != after.kind or (before.scale or 0) < (after.scale or 0)
    return bool(before.arrow() != after.arrow())


def converted(values: pa.Array, old: Column | None, new: Column) -> pa.Array:
    """Return a column's values under the type that a later version gave it; NULL where a value has no meaning there."""
    wanted = new.type.arrow()
    if (values.type == wanted) if old is None else not is_converted(old, new):
        return values
    if old is not None and old.type.kind in ELEMENT_KINDS and (new.type.kind == old.type.kind or pa.types.is_string(wanted)):
        values = _arrow(element_names(old, pl.Series(values)), pa.string())
    if new.type.kind in ELEMENT_KINDS and pa.types.is_string(values.type):
        return _arrow(element_values(new, pl.Series(values)), wanted)
    values = _cast(values, wanted)
    if new.type.kind in TIME_KINDS or new.type.kind is TypeKind.DECIMAL:
        return _padded(values, new.type.scale or 0)
    return values


def constant(column: Column, text: str) -> pa.Scalar:
    """Return a default's text as a value of the column; raises ``ValueError`` where it is none, as for what is computed."""
    try:
        return pa.scalar(_value(column, text), column.type.arrow())
    except (ArithmeticError, OverflowError, pa.ArrowException) as error:
        raise ValueError(f"{text!r} is no value of {column.type.kind}") from error


def implicit_default(kind: ColumnType) -> str | None:
    """Return what a server fills in where a column must not be NULL and has no default, as a DDL would write it; None for a VECTOR."""
    if kind.kind is TypeKind.ENUM:
        return kind.elems[0] if kind.elems else None
    if kind.kind in _IMPLICIT:
        return _IMPLICIT[kind.kind] + ("." + "0" * kind.scale if kind.scale and kind.kind in TIME_KINDS else "")
    if kind.kind is TypeKind.DECIMAL or not (pa.types.is_string(kind.arrow()) or pa.types.is_binary(kind.arrow())):
        return "0"
    return None if kind.kind is TypeKind.VECTOR else ""


def _initial_text(column: Column) -> str | None:
    if column.initial_default is not msgspec.UNSET:
        return column.initial_default
    if column.generated or column.default == "NULL":
        return None
    if column.default is None and not column.nullable and not column.primary_key:
        return implicit_default(column.type)
    return column.default


def _value(column: Column, text: str) -> object:  # noqa: PLR0911 - one return per family of types
    kind, data_type, scale = column.type.kind, column.type.arrow(), column.type.scale or 0
    if kind is TypeKind.ENUM:
        return _element(column, text) + 1
    if kind is TypeKind.SET:
        return sum(1 << at for at in {_element(column, part) for part in text.split(",") if part})
    if kind is TypeKind.BIT and (bits := _BITS.fullmatch(text)):
        return int(bits[1] or bits[2] or "0", 2)
    if pa.types.is_integer(data_type):
        return int(decimal.Decimal(_TRUTHS.get(text.upper(), text)).to_integral_value(decimal.ROUND_HALF_UP))
    if pa.types.is_floating(data_type):
        return float(text)
    if kind is TypeKind.DECIMAL:
        with decimal.localcontext(prec=_DIGITS_MAX):
            return f"{decimal.Decimal(text).quantize(decimal.Decimal(1).scaleb(-scale), decimal.ROUND_HALF_UP):f}"
    if kind in TIME_KINDS or kind is TypeKind.DATE:
        return _moment(text, kind, scale)
    if kind in BINARY_KINDS:
        given = _HEX.fullmatch(text)
        value = text.encode() if given is None else bytes.fromhex(given[1] or given[2] or given[3] or "")
        return value.ljust(column.type.length or 0, b"\0") if kind is TypeKind.BINARY else value
    if _CALL.fullmatch(text):
        raise ValueError(f"{text} is computed")
    return text


def _element(column: Column, text: str) -> int:
    """Return the place of an element; names of elements are compared without case."""
    return [e.lower() for e in column.type.elems].index(text.lower())


def _moment(text: str, kind: TypeKind, scale: int) -> str:
    if not _MOMENT.fullmatch(text):
        raise ValueError(f"{text} is computed")
    if kind is TypeKind.DATE:
        return text.partition(" ")[0]
    if kind is not TypeKind.TIME and ":" not in text:
        text += " 00:00:00"
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction[:scale]:0<{scale}}" if scale else whole


def _cast(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return values of another Arrow type, NULL where there is none."""
    try:
        return pc.cast(values, wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        kind = pl.Series(pa.array([], wanted)).dtype
    if pa.types.is_binary(values.type):
        values = _texts(values)
    return _arrow(pl.Series(values).cast(kind, strict=False), wanted)


def _texts(values: pa.Array) -> pa.Array:
    """Return bytes as text, NULL where they are none; each distinct value is looked at once."""
    coded = values.dictionary_encode()
    texts = [value.decode(errors="replace") for value in coded.dictionary.to_pylist()]
    return pa.array([None if "\ufffd" in text else text for text in texts], pa.string()).take(coded.indices)


def _padded(values: pa.Array, scale: int) -> pa.Array:
    """Return texts of numbers or times with as many digits behind the point as a scale asks for; those that have enough stay."""
    if scale == 0:
        return values
    text = pl.col("text")
    digits = text.str.extract(r"\.(\d+)$", 1).str.len_bytes().fill_null(0)
    zeros = pl.lit("0" * scale).str.slice(0, (scale - digits.cast(pl.Int64)).clip(lower_bound=0))
    padded = pl.when(digits >= scale).then(text).otherwise(pl.when(digits == 0).then(text + ".").otherwise(text) + zeros)
    return _arrow(pl.DataFrame({"text": pl.Series(values)}).select(padded.alias("text")).to_series(), values.type)


def _arrow(series: pl.Series, wanted: pa.DataType) -> pa.Array:
    return series.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(wanted)
