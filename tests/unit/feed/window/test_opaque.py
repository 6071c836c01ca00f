import pyarrow as pa

from penstock.feed.window.opaque import ARROW_SCHEMA, RowKind, batch_row, opaque_row
from penstock.model.batch import read_ipc


def test_a_batch_crosses_as_one_row_and_comes_back_equal():
    records = pa.record_batch({"_ts": pa.array([5, 6], pa.uint64()), "c1": pa.array(["a", None], pa.string())})
    row = batch_row("7-0", records)
    assert row.schema == ARROW_SCHEMA
    assert row.num_rows == 1
    assert row.column("changes").to_pylist() == [2]
    assert row.column("kind").to_pylist() == [RowKind.BATCH]
    assert read_ipc(row.column("payload")[0].as_buffer()).equals(records)


def test_a_row_without_payload_is_valid():
    row = opaque_row("7-0", RowKind.CLOSE)
    row.validate(full=True)
    assert row.column("payload").to_pylist() == [b""]
