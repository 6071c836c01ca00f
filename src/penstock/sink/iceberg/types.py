"""Columns and files as Iceberg describes them: field ids are those of the lake's columns, bounds are bytes. Runs beside the driver."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField as IcebergField
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from penstock.model.errors import InvariantError
from penstock.sink.lake.data_files import Bounds, LakeFile
from penstock.sink.lake.partitions.division import PartitionField, ordinal, ordinal_text
from penstock.sink.lake.partitions.rules import Transform as By
from penstock.sink.lake.rewriting import FIELD_ID

_PLAIN: dict[pa.DataType, type[IcebergType]] = {
    pa.int32(): IntegerType,
    pa.int64(): LongType,
    pa.float32(): FloatType,
    pa.float64(): DoubleType,
    pa.string(): StringType,
    pa.binary(): BinaryType,
    pa.date32(): DateType,
    pa.timestamp("us"): TimestampType,
    pa.timestamp("us", "UTC"): TimestamptzType,
}
_ARROW = {made: arrow for arrow, made in _PLAIN.items()}
_EPOCH = dt.date(1970, 1, 1)
_TRANSFORMS: dict[By, Transform[Any, Any]] = {
    By.IDENTITY: IdentityTransform(),
    By.YEAR: YearTransform(),
    By.MONTH: MonthTransform(),
    By.DAY: DayTransform(),
    By.HOUR: HourTransform(),
}


def iceberg_schema(schema: pa.Schema, schema_id: int) -> Schema:
    """Return columns as Iceberg has them, under their own ids."""
    fields = [NestedField(field_id(f), f.name, iceberg_type(f.type), required=False) for f in schema]
    return Schema(*fields, schema_id=schema_id)


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return Iceberg's columns as the lake has them."""
    return pa.schema([pa.field(f.name, _arrow_type(f.field_type), True, {FIELD_ID: str(f.field_id)}) for f in schema.fields])


def field_id(field: pa.Field) -> int:
    """Return the id of a column."""
    return int(field.metadata[FIELD_ID])


def iceberg_type(data_type: pa.DataType) -> IcebergType:
    """Return the type of a column."""
    if pa.types.is_decimal(data_type):
        return DecimalType(data_type.precision, data_type.scale)
    if data_type not in _PLAIN:
        raise InvariantError(f"Iceberg has no {data_type}")
    return _PLAIN[data_type]()


def is_promoted(before: pa.DataType, after: pa.DataType) -> bool:
    """Return whether files with values of one type are read as another, by Iceberg's own rules."""
    if pa.types.is_decimal(before) and pa.types.is_decimal(after):
        return bool(before.scale == after.scale and before.precision <= after.precision)
    return bool(before == after or (before, after) in {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())})


def partition_spec(fields: Sequence[PartitionField], spec_id: int, first_id: int) -> PartitionSpec:
    """Return partitions as Iceberg has them."""
    made = [IcebergField(f.column_id, first_id + at, _transform(f), f.name) for at, f in enumerate(fields)]
    return PartitionSpec(*made, spec_id=spec_id)


def is_spec_of(spec: PartitionSpec, fields: Sequence[PartitionField]) -> bool:
    """Return whether partitions are these, whatever they are called."""
    return [(f.source_id, str(f.transform)) for f in spec.fields] == [(f.column_id, str(_transform(f))) for f in fields]


def data_file(file: LakeFile, root: str, schema: Schema, spec: PartitionSpec, format_version: int) -> DataFile:
    """Return a file as a manifest lists it."""
    known = [(schema.find_field(name), bounds) for name, bounds in file.bounds.items() if name in schema.column_names]
    lows = {f.field_id: to_bytes(f.field_type, _value(f.field_type, b.low)) for f, b in known if b.low is not None}
    highs = {f.field_id: to_bytes(f.field_type, _value(f.field_type, b.high)) for f, b in known if b.high is not None}
    values = [_partition_value(f, schema, text) for f, text in zip(spec.fields, file.partition.values(), strict=True)]
    made = DataFile.from_args(
        _table_format_version=format_version,
        content=DataFileContent.DATA,
        file_path=f"{root}/{file.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        record_count=file.rows,
        file_size_in_bytes=file.nbytes,
        column_sizes={},
        value_counts={f.field_id: file.rows for f, _ in known},
        null_value_counts={f.field_id: b.nulls for f, b in known},
        nan_value_counts={},
        lower_bounds=lows,
        upper_bounds=highs,
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
    )
    made.spec_id = spec.spec_id
    return made


def lake_file(file: DataFile, root: str, schema: Schema, specs: Mapping[int, PartitionSpec]) -> LakeFile:
    """Return a file of a manifest as the lake knows it."""
    names = {f.field_id: f for f in schema.fields}
    nulls = file.null_value_counts or {}
    bounds = {}
    for number, low in (file.lower_bounds or {}).items():
        high = (file.upper_bounds or {}).get(number)
        if number in names and high is not None:
            kind = names[number].field_type
            bounds[names[number].name] = Bounds(nulls.get(number, 0), *(_plain(kind, from_bytes(kind, b)) for b in (low, high)))
    fields = specs[file.spec_id].fields
    partition = {f.name: _partition_text(f, schema, file.partition[at]) for at, f in enumerate(fields)}
    return LakeFile(file.file_path.removeprefix(f"{root}/"), file.record_count, file.file_size_in_bytes, bounds, partition)


def _transform(field: PartitionField) -> Transform[Any, Any]:
    return BucketTransform(field.buckets) if field.transform is By.BUCKET else _TRANSFORMS[field.transform]


def _partition_value(field: IcebergField, schema: Schema, text: str | None) -> Any:
    """Return the value of a partition as a manifest has it."""
    by = _by(field)
    if text is None or by is not By.IDENTITY:
        return ordinal(by, text)
    kind = schema.find_field(field.source_id).field_type
    return text if isinstance(kind, StringType) else _value(kind, text) if isinstance(kind, DecimalType | DateType) else int(text)


def _partition_text(field: IcebergField, schema: Schema, value: Any) -> str | None:
    by = _by(field)
    if value is None or by is not By.IDENTITY:
        return ordinal_text(by, value)
    is_date = field.source_id in schema._lazy_id_to_field and isinstance(schema.find_field(field.source_id).field_type, DateType)
    return str(_EPOCH + dt.timedelta(days=value)) if is_date else str(value)


def _by(field: IcebergField) -> By:
    return By(str(field.transform).partition("[")[0])


def _arrow_type(kind: IcebergType) -> pa.DataType:
    return pa.decimal128(kind.precision, kind.scale) if isinstance(kind, DecimalType) else _ARROW[type(kind)]


def _value(kind: IcebergType, value: int | str | None) -> Any:
    if isinstance(kind, DecimalType):
        return Decimal(value or 0)
    if isinstance(kind, DateType) and isinstance(value, str):
        return (dt.date.fromisoformat(value) - _EPOCH).days
    return value


def _plain(kind: IcebergType, value: Any) -> int | str | None:
    if isinstance(kind, DecimalType):
        return int(value) if kind.scale == 0 else None
    if isinstance(kind, DateType):
        return str(_EPOCH + dt.timedelta(days=value))
    return value if isinstance(value, int | str) and not isinstance(kind, TimestampType | TimestamptzType) else None
