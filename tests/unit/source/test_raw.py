import pyarrow as pa

from penstock.source.raw import RAW_DELETE, RAW_PUT, RAW_SCHEMA, RawBatch


def test_weight_is_that_of_the_entries_and_never_zero() -> None:
    rows = [(9, 8, RAW_PUT, b"k", b"value", None), (9, 8, RAW_DELETE, b"m", None, b"old value")]
    arrays = [pa.array(column, f.type) for column, f in zip(zip(*rows, strict=True), RAW_SCHEMA, strict=True)]
    entries = pa.record_batch(arrays, RAW_SCHEMA)
    assert RawBatch(3, entries).nbytes == entries.nbytes >= 2 * 17 + len(b"kmvalueold value")
    assert RawBatch(3, entries.slice(0, 0)).nbytes == 1


def test_only_values_may_be_missing() -> None:
    assert [f.name for f in RAW_SCHEMA if f.nullable] == ["value", "old_value"]
    assert (RAW_PUT, RAW_DELETE) == (1, 2)
