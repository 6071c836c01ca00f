"""Names, numbers, schema files and cuts of the storage sink."""

import datetime as dt
import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.format.layout.schema_file import SchemaFile, parse_schema_file
from penstock.model.batch import Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.readback.recovery import recover_position
from penstock.sink.contract import DispatcherId, DispatcherResult, DispatcherWork, DmlEvent
from penstock.sink.storage.maintainer import StorageMaintainer
from penstock.sink.storage.publisher import SchemaVersions
from penstock.sink.storage.sink import StorageSink
from penstock.target.settings import StorageSinkSettings, from_uri
from penstock.target.storage import ObjectTarget

_names = itertools.count()
ID = Column(1, "id", ColumnType(TypeKind.BIGINT), False, True)
NOTE = Column(2, "note", ColumnType(TypeKind.VARCHAR, length=40))
D = DispatcherId(7)


def ts_of(text: str) -> int:
    return compose_ts(int(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp() * 1000))


T0 = ts_of("2023-11-14T12:00:00")
TABLE = TableSchema(7, "shop", "orders", T0, (ID, NOTE))


def target_of(query: str = "") -> tuple[ObjectTarget, StorageSinkSettings]:
    uri, chosen = from_uri(f"memory://publishing-{next(_names)}/?{query}")
    return ObjectTarget.open(uri), chosen


def rows(ts: list[int], notes: list[str] | None = None) -> pa.RecordBatch:
    texts = notes or [f"note {i}" for i in range(len(ts))]
    columns = [
        pa.array(ts, pa.uint64()),
        pa.array([Op.INSERT] * len(ts), pa.uint8()),
        pa.array(range(len(ts)), pa.int64()),
        pa.array(texts),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["_ts", "_op", "c1", "c2"])


def run(
    target: ObjectTarget,
    chosen: StorageSinkSettings,
    events: list[tuple[TableSchema, pa.RecordBatch]],
    position: dict[str, int] | None = None,
    from_ts: int = T0,
) -> DispatcherResult:
    sink = StorageSink(target, chosen)
    try:
        sink.open_dispatcher(DispatcherWork(D, TABLE, from_ts, T0 + 10**12, position or {}))
        for table, records in events:
            sink.add_dml_event(DmlEvent(D, table, records))
        return sink.close_dispatcher(D)
    finally:
        sink.close()


def contents(target: ObjectTarget) -> dict[str, bytes]:
    return {path: target.get(path) for path in target.paths()}


def test_files_are_cut_at_dates_and_versions() -> None:
    target, chosen = target_of()
    later = TableSchema(7, "shop", "orders", ts_of("2023-11-16T00:00:00"), (ID, NOTE, Column(3, "more", ColumnType(TypeKind.INT))))
    more = rows([ts_of("2023-11-16T01:00:00")]).append_column("c3", pa.array([None], pa.int32()))
    result = run(target, chosen, [(TABLE, rows([T0 + 1, T0 + 2, ts_of("2023-11-15T00:00:00")])), (later, more)])
    assert [(f.path, f.rows) for f in result.files] == [
        (f"shop/orders/{T0}/2023-11-14/CDC00000000000000000001.csv", 2),
        (f"shop/orders/{T0}/2023-11-15/CDC00000000000000000001.csv", 1),
        (f"shop/orders/{later.version}/2023-11-16/CDC00000000000000000001.csv", 1),
    ]
    assert result.position == {f"schema/{later.version}": later.version, f"{later.version}/2023-11-16": 1}
    assert target.get(f"shop/orders/{T0}/2023-11-14/meta/CDC.index") == b"CDC00000000000000000001.csv\n"
    for table in (TABLE, later):
        file = SchemaFile.of_table(table)
        assert target.get(file.path) == file.render()


def test_numbers_go_on_from_the_position_without_gaps() -> None:
    target, chosen = target_of("file-size=1024&file-index-width=6")
    position: dict[str, int] = {}
    paths = []
    for window in range(4):
        result = run(target, chosen, [(TABLE, rows([T0 + window * 1000 + i for i in range(100)]))], position)
        position = result.position
        paths += [f.path for f in result.files]
    assert [int(p[-10:-4]) for p in paths] == list(range(1, len(paths) + 1))
    assert len(paths) > 8
    assert target.get(f"shop/orders/{T0}/2023-11-14/meta/CDC.index") == f"CDC{len(paths):06d}.csv\n".encode()


def test_a_table_that_is_split_and_made_whole_again_keeps_its_numbers() -> None:
    target, chosen = target_of("date-separator=none&file-index-width=6")
    position: dict[str, int] = {}
    names = []
    for window, spans in enumerate([1, 1, 2, 3, 1, 2]):
        dispatcher = DispatcherId(7, 0, spans)
        sink = StorageSink(target, chosen)
        sink.open_dispatcher(DispatcherWork(dispatcher, TABLE, T0, T0 + 10**6, position))
        sink.add_dml_event(DmlEvent(dispatcher, TABLE, rows([T0 + 1 + window])))
        result = sink.close_dispatcher(dispatcher)
        sink.close()
        position = result.position
        names.append(result.files[0].path.rpartition("/")[2].removesuffix(".csv"))
    assert names == ["CDC000001", "CDC000002", "CDC_70000_000001", "CDC_70000_000002", "CDC000003", "CDC_70000_000003"]
    assert position == {f"schema/{T0}": T0, f"{T0}/": 3, f"{T0}//70000": 3}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 1, 3_600_000 << 18]), st.integers(0, 300)), min_size=1, max_size=80),
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.sampled_from(["none", "table"]),
)
def test_the_same_rows_give_the_same_files(changes: list[tuple[int, int]], sizes: list[int], atomicity: str) -> None:
    ts = [T0 + 1 + int(t) for t in np.cumsum([step for step, _ in changes])]
    everything = rows(ts, ["x" * size for _, size in changes])
    query = f"file-size=1024&transaction-atomicity={atomicity}"
    whole_target, chosen = target_of(query)
    whole = run(whole_target, chosen, [(TABLE, everything)])
    parted_target, _ = target_of(query)
    parts, at = [], 0
    for size in itertools.cycle(sizes):
        if at >= len(ts):
            break
        parts.append((TABLE, everything.slice(at, size)))
        at += size
    parted = run(parted_target, chosen, parts)
    assert parted == whole
    assert contents(parted_target) == contents(whole_target)
    if atomicity == "table":
        at = 0
        for file in whole.files[:-1]:
            at += file.rows
            assert ts[at] != ts[at - 1]


def test_keys_and_flags_of_events_do_not_show() -> None:
    plain_target, chosen = target_of("file-size=1024")
    everything = rows([T0 + i for i in range(300)])
    plain = run(plain_target, chosen, [(TABLE, everything)])
    target, _ = target_of()
    keyed = everything.add_column(2, "_key", pa.array([b"k" * 50] * 300))
    strict = pa.RecordBatch.from_arrays(keyed.columns, schema=pa.schema([f.with_nullable(False) for f in keyed.schema]))
    assert run(target, chosen, [(TABLE, keyed.slice(0, 7)), (TABLE, strict.slice(7))]) == plain
    assert contents(target) == contents(plain_target)


def test_a_snapshot_is_not_one_transaction() -> None:
    target, chosen = target_of("file-size=1024&transaction-atomicity=table")
    snapshot = rows([T0 + 5] * 500)
    assert len(run(target, chosen, [(TABLE, snapshot)], from_ts=0).files) > 3
    other, _ = target_of()
    assert len(run(other, chosen, [(TABLE, snapshot)]).files) == 1


def test_a_repeated_attempt_that_comes_less_far_leaves_the_index() -> None:
    target, chosen = target_of("file-size=1024")
    everything = rows([T0 + i for i in range(200)])
    full = run(target, chosen, [(TABLE, everything)])
    before = contents(target)
    sink = StorageSink(target, chosen)
    sink.open_dispatcher(DispatcherWork(D, TABLE, T0, T0 + 10**12))
    sink.add_dml_event(DmlEvent(D, TABLE, everything.slice(0, 150)))
    sink.close()
    assert contents(target) == before
    assert run(target, chosen, [(TABLE, everything)]) == full
    assert contents(target) == before


def test_the_first_attempt_s_schema_file_may_be_the_ddl_s() -> None:
    target, chosen = target_of()
    ddl = DdlEvent(T0, DdlType.CREATE_TABLE, "CREATE TABLE orders (...)", "shop", (TABLE,))
    maintainer = StorageMaintainer(target, chosen)
    paths = maintainer.write_block_event(ddl)
    run(target, chosen, [(TABLE, rows([T0 + 1]))])
    assert parse_schema_file(target.get(paths[0]), paths[0]).query == ddl.query
    assert len(list(target.paths("shop/orders/meta"))) == 1


def test_a_ddl_s_text_replaces_a_structure_only_file() -> None:
    target, chosen = target_of()
    SchemaVersions(target, output_column_id=False).ensure(TABLE)
    ddl = DdlEvent(T0, DdlType.CREATE_TABLE, "CREATE TABLE orders (...)", "shop", (TABLE,))
    paths = StorageMaintainer(target, chosen).write_block_event(ddl)
    assert parse_schema_file(target.get(paths[0]), paths[0]).type == DdlType.CREATE_TABLE


def test_an_equal_version_just_before_is_used_again_but_never_an_older_one() -> None:
    target, _ = target_of()

    def at(version: int, *columns: Column) -> int:
        return SchemaVersions(target, output_column_id=False).ensure(TableSchema(7, "s", "t", version, columns))

    assert at(10, ID) == 10
    assert at(20, ID) == 10
    assert at(30, ID, NOTE) == 30
    assert at(40, ID) == 40
    assert at(35, ID, NOTE) == 30
    assert at(10, ID) == 10


def test_positions_are_recovered_from_the_target() -> None:
    target, chosen = target_of("file-size=1024")
    everything = rows([T0 + i for i in range(200)])
    result = run(target, chosen, [(TABLE, everything)])
    assert recover_position(target, chosen, D, TABLE) == result.position
    # A file that was published without its index counts as used.
    last = result.files[-1].path
    number = result.position[f"{T0}/2023-11-14"]
    target.put(last.replace(f"{number:020d}", f"{number + 1:020d}"), b"")
    assert recover_position(target, chosen, D, TABLE)[f"{T0}/2023-11-14"] == number + 1
    # An index whose file never came gives its number again.
    target.delete(last)
    target.delete(last.replace(f"{number:020d}", f"{number + 1:020d}"))
    assert recover_position(target, chosen, D, TABLE)[f"{T0}/2023-11-14"] == number - 1
    assert recover_position(target, chosen, DispatcherId(7, 1, 2), TABLE) == {}


def test_a_failed_upload_fires_no_flush_and_stops_the_rest() -> None:
    target, chosen = target_of("file-size=1024")
    target.put(f"shop/orders/{T0}/2023-11-14/CDC00000000000000000001.csv", b"foreign")
    sink = StorageSink(target, chosen)
    fired: list[str] = []
    sink.open_dispatcher(DispatcherWork(D, TABLE, T0, T0 + 10**12))

    def everything() -> None:
        for i in range(50):
            sink.add_dml_event(DmlEvent(D, TABLE, rows([T0 + i * 100 + n for n in range(100)]), None, lambda: fired.append("flushed")))
        sink.close_dispatcher(D)

    with pytest.raises(PenstockError, match="SINK_CONFLICT"):
        everything()
    sink.close()
    assert fired == []
    assert [p for p in target.paths() if p.endswith("index")] == []
