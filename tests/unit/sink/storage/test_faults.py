"""A window that fails at any operation, before or after it took effect, and is then repeated, ends as if nothing had happened."""

import itertools
import random
import threading

import obstore
import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from penstock.model.batch import Op
from penstock.model.clock import SystemClock
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.reader import StorageReader
from penstock.readback.replay import replay_table
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent
from penstock.sink.storage.maintainer import StorageMaintainer
from penstock.sink.storage.sink import StorageSink
from penstock.target.settings import from_uri
from penstock.target.storage import ObjectTarget, RetrySettings

T0 = compose_ts(1_700_000_000_000)
COLUMNS = (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True), Column(2, "note", ColumnType(TypeKind.VARCHAR, length=40)))
TABLE = TableSchema(7, "shop", "orders", T0, COLUMNS)
AFTER = TableSchema(7, "shop", "orders", T0 + 500, (*COLUMNS, Column(3, "n", ColumnType(TypeKind.INT), default="3")))
DDL = DdlEvent(T0 + 500, DdlType.ADD_COLUMN, "ALTER TABLE orders ADD n INT DEFAULT 3", "shop", (AFTER,))
_, SETTINGS = from_uri("memory:///?file-size=1024")
D = DispatcherId(7)


class FaultyTarget(ObjectTarget):
    """Fails the write of a given number, before it takes effect or after."""

    def __init__(self, store: MemoryStore, fail_at: int | None, after: bool) -> None:
        super().__init__(store, "faulty", RetrySettings(attempts_max=1), SystemClock(), random.Random(1))
        self.writes = 0
        self._lock = threading.Lock()
        self.fail_at = fail_at
        self._after = after

    def put_new(self, path: str, content: bytes | memoryview) -> bool:
        number = self._step()
        created = super().put_new(path, content)
        self._fail_after(number)
        return created

    def put(self, path: str, content: bytes | memoryview) -> None:
        number = self._step()
        super().put(path, content)
        self._fail_after(number)

    def put_over(self, path: str, content: bytes, tag: str | None) -> str | None:
        number = self._step()
        written = super().put_over(path, content, tag)
        self._fail_after(number)
        return written

    def _step(self) -> int:
        with self._lock:
            self.writes += 1
            number = self.writes
        if number == self.fail_at and not self._after:
            raise PenstockError("SINK_UNAVAILABLE", "scripted")
        return number

    def _fail_after(self, number: int) -> None:
        if number == self.fail_at and self._after:
            raise PenstockError("SINK_UNAVAILABLE", "scripted")


def rows(start: int, count: int, table: TableSchema) -> pa.RecordBatch:
    columns = [
        pa.array([T0 + 1 + start + i for i in range(count)], pa.uint64()),
        pa.array([Op.INSERT] * count, pa.uint8()),
        pa.array(range(start, start + count), pa.int64()),
        pa.array([f"note {i}" for i in range(start, start + count)]),
    ]
    if table is AFTER:
        columns.append(pa.array([None] * count, pa.int32()))
    return pa.RecordBatch.from_arrays(columns, names=["_ts", "_op", *(c.field_name for c in table.columns)])


def attempt(target: ObjectTarget) -> DispatcherResult:
    """One window with a DDL inside, then the checkpoint."""
    maintainer = StorageMaintainer(target, SETTINGS, random.Random(5))
    maintainer.claim("feed")
    sink = StorageSink(target, SETTINGS)
    try:
        sink.open_dispatcher(DispatcherWork(D, TABLE, T0, T0 + 1_000))
        sink.add_dml_event(DmlEvent(D, TABLE, rows(0, 60, TABLE)))
        sink.pass_block_event(D, DDL)
        maintainer.write_block_event(DDL)
        sink.add_dml_event(DmlEvent(D, AFTER, rows(600, 60, AFTER)))
        result = sink.close_dispatcher(D)
    finally:
        sink.close()
    maintainer.publish_checkpoint(T0 + 1_000)
    return result


def contents(store: MemoryStore) -> dict[str, bytes]:
    return {o["path"]: bytes(obstore.get(store, o["path"]).bytes()) for page in obstore.list(store) for o in page}


def count_of_writes() -> int:
    target = FaultyTarget(MemoryStore(), None, after=False)
    attempt(target)
    return target.writes


def fails(target: FaultyTarget) -> bool:
    """Try a window; how many writes it has is not certain, because one index may stand for several files."""
    try:
        attempt(target)
    except PenstockError as error:
        if error.code != "SINK_UNAVAILABLE":
            raise
        return True
    assert target.writes < (target.fail_at or 0)
    return False


@pytest.mark.parametrize("after", [False, True])
def test_any_failed_write_is_healed_by_the_next_attempt(after: bool) -> None:
    clean_store = MemoryStore()
    clean = attempt(FaultyTarget(clean_store, None, after=False))
    writes = count_of_writes()
    assert writes > 10
    for fail_at in range(1, writes + 1):
        store = MemoryStore()
        if not fails(FaultyTarget(store, fail_at, after)):
            continue
        reader = StorageReader(FaultyTarget(store, None, after=False), SETTINGS)
        assert reader.checkpoint_ts() in {None, T0 + 1_000}
        assert attempt(FaultyTarget(store, None, after=False)) == clean
        assert contents(store) == contents(clean_store), fail_at


def test_no_index_names_a_file_that_is_not_there() -> None:
    for fail_at, after in itertools.product(range(1, count_of_writes() + 1), (False, True)):
        store = MemoryStore()
        fails(FaultyTarget(store, fail_at, after))
        found = contents(store)
        for path, content in found.items():
            if path.endswith(".index"):
                directory = path.removesuffix("/meta/CDC.index")
                assert f"{directory}/{content.decode().strip()}" in found
                version = directory.split("/")[2]
                assert any(p.startswith(f"shop/orders/meta/schema_{version}_") for p in found)


def test_the_clean_run_holds_the_rows() -> None:
    target = FaultyTarget(MemoryStore(), None, after=False)
    attempt(target)
    state = replay_table(StorageReader(target, SETTINGS), "shop", "orders").sort("id")
    assert state.rows() == [(i, f"note {i}", 3) for i in range(60)] + [(i, f"note {i}", None) for i in range(600, 660)]
