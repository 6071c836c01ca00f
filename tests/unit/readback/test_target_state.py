"""What a target holds, read back for a feed whose history is lost, also where an attempt ended in the middle."""

from pathlib import Path

import pyarrow as pa

from penstock.model.batch import Op
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.target_state import StorageState
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.sink.storage.sink import StorageSink
from penstock.target.settings import StorageSinkSettings
from penstock.target.storage import TargetAddress

T0 = compose_ts(1_700_000_000_000)
DAY = 86_400_000 << 18
TABLE = TableSchema(7, "shop", "orders", T0, (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True),))
WHOLE = DispatcherId(7)


def deliver(uri: str, ts: int, key: int, position: dict[str, int]) -> dict[str, int]:
    records = pa.RecordBatch.from_arrays(
        [pa.array([ts], pa.uint64()), pa.array([Op.INSERT], pa.uint8()), pa.array([key], pa.int64())], names=["_ts", "_op", "c1"]
    )
    sink = StorageSink(TargetAddress(uri).open(), StorageSinkSettings())
    sink.open_dispatcher(DispatcherWork(WHOLE, TABLE, ts - 1, ts, position))
    sink.add_dml_event(DmlEvent(WHOLE, TABLE, records))
    result = sink.close_dispatcher(WHOLE)
    sink.close()
    return result.position


def test_a_file_whose_index_is_still_to_come_counts(tmp_path: Path) -> None:
    uri = tmp_path.as_uri()
    first = deliver(uri, T0 + 1, 1, {})
    deliver(uri, T0 + DAY, 2, first)
    state = StorageState(TargetAddress(uri).open(), StorageSinkSettings())

    def rows() -> list[int]:
        position = state.position(WHOLE, TABLE)
        work = DispatcherWork(WHOLE, TABLE, 0, T0 + 2 * DAY, position)
        return [key for batch in state.changes(work) for key in batch.column("c1").to_pylist()]

    assert rows() == [1, 2]
    (newest,) = sorted(tmp_path.rglob("*.index"))[-1:]
    newest.unlink()
    assert rows() == [1, 2], "the next file of that day would make readers read it"
