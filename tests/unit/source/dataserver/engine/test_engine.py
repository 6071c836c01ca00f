import pyarrow as pa
import pytest

from penstock.model.errors import PenstockError
from penstock.model.rows.row_key import encode_row_keys, full_span, table_end, table_prefix
from penstock.model.span import DDL_SPAN, DDL_TABLE_ID, Span
from penstock.source.dataserver.engine.engine import Engine, EngineSettings
from penstock.source.dataserver.rowcodec import encode_values
from penstock.source.dataserver.transaction import PREWRITE_BYTES_MAX, Txn
from testing.twins.clock import SimulatedClock


@pytest.fixture
def clock():
    return SimulatedClock()


@pytest.fixture
def engine(clock):
    made = Engine(EngineSettings(stores=3, lock_ttl_ms=1000), clock)
    made.execute_ddl("CREATE DATABASE d")
    made.execute_ddl("CREATE TABLE d.a (id BIGINT PRIMARY KEY, v VARCHAR(50))")
    made.execute_ddl("CREATE TABLE d.b (id BIGINT PRIMARY KEY, v VARCHAR(50))")
    return made


def put(txn, engine, table, **rows):
    """Put rows given as _<id>=value."""
    ids = [int(name[1:]) for name in rows]
    return txn.put(engine.table("d", table), {"id": pa.array(ids, pa.int64()), "v": pa.array(list(rows.values()), pa.string())})


def write(engine, table, **rows):
    with Txn(engine) as txn:
        put(txn, engine, table, **rows)
    return txn.commit_ts


def key_of(engine, table, number, full=True):
    schema = engine.table("d", table)
    return encode_row_keys(schema, {"c1": pa.array([number], pa.int64())}, table_prefix(schema.table_id) if full else b"")


def remove(engine, table, number):
    with Txn(engine) as txn:
        txn.delete(engine.table("d", table), key_of(engine, table, number, full=False))
    return txn.commit_ts


def rows(engine, table, ts=None, page=2):
    schema = engine.table("d", table)
    found = {}
    for keys, values, _ in engine.read(*full_span(Span(schema.table_id)), ts or engine.current_ts(), page):
        assert keys == sorted(keys)
        found.update(zip([int.from_bytes(k[-8:], "big") - (1 << 63) for k in keys], [v[-1:].decode() for v in values], strict=True))
    return found


def ranges_of(engine, table):
    schema = engine.table("d", table)
    return engine.list_ranges(table_prefix(schema.table_id), table_end(schema.table_id))


def test_reads_see_exactly_what_was_committed_by_their_ts(engine):
    first = write(engine, "a", _1="x", _2="y", _3="z")
    second = write(engine, "a", _2="Y")
    third = remove(engine, "a", 1)
    assert rows(engine, "a", first - 1) == {}
    assert rows(engine, "a", first) == {1: "x", 2: "y", 3: "z"}
    assert rows(engine, "a", second) == {1: "x", 2: "Y", 3: "z"}
    assert rows(engine, "a", third) == {2: "Y", 3: "z"}
    with pytest.raises(PenstockError, match="future"):
        rows(engine, "a", engine.current_ts() + (1 << 40))


def test_a_transaction_is_visible_in_all_its_tables_and_ranges_at_one_ts_or_not_at_all(engine):
    engine.split(key_of(engine, "a", 5)[0].as_py())
    txn = Txn(engine)
    put(txn, engine, "a", _1="x", _9="y")
    put(txn, engine, "b", _1="z")
    txn.prewrite()
    before = engine.current_ts()
    assert rows(engine, "a") == rows(engine, "b") == {}
    ts = txn.commit()
    assert before < ts
    assert rows(engine, "a", ts - 1) == rows(engine, "b", ts - 1) == {}
    assert (rows(engine, "a", ts), rows(engine, "b", ts)) == ({1: "x", 9: "y"}, {1: "z"})


def test_a_rolled_back_transaction_leaves_nothing_and_frees_its_keys(engine):
    txn = Txn(engine)
    put(txn, engine, "a", _1="x")
    txn.prewrite()
    txn.rollback()
    assert rows(engine, "a") == {}
    write(engine, "a", _1="y")
    assert rows(engine, "a") == {1: "y"}
    with pytest.raises(PenstockError, match="TXN_CONFLICT"):
        engine.commit(txn.start_ts)


def test_a_lock_and_a_newer_write_are_conflicts(engine):
    early, locker = Txn(engine), Txn(engine)
    put(locker, engine, "a", _1="x")
    locker.prewrite()
    with pytest.raises(PenstockError, match=r"TXN_CONFLICT.*locked"):
        write(engine, "a", _1="y")
    locker.commit()
    put(early, engine, "a", _1="z", _2="z")
    with pytest.raises(PenstockError, match=r"TXN_CONFLICT.*after"):
        early.commit()
    assert rows(engine, "a") == {1: "x"}


def test_a_failed_prewrite_locks_nothing(engine):
    holder, other = Txn(engine), Txn(engine)
    put(holder, engine, "a", _2="x")
    holder.prewrite()
    put(other, engine, "a", _1="y", _2="y")
    with pytest.raises(PenstockError, match="TXN_CONFLICT"):
        other.prewrite()
    write(engine, "a", _1="free")
    assert holder.commit()


def test_a_ddl_aborts_the_open_transactions_of_its_table_only(engine):
    mine, others = Txn(engine), Txn(engine)
    put(mine, engine, "a", _1="x")
    put(others, engine, "b", _1="x")
    mine.prewrite()
    others.prewrite()
    ddl_ts = engine.execute_ddl("ALTER TABLE d.a ADD COLUMN n INT")
    with pytest.raises(PenstockError, match="TXN_CONFLICT"):
        mine.commit()
    assert others.commit() > ddl_ts
    assert rows(engine, "a") == {}


def test_rows_of_an_old_version_are_refused_after_a_ddl(engine):
    old = engine.table("d", "a")
    engine.execute_ddl("ALTER TABLE d.a ADD COLUMN n INT")
    txn = Txn(engine)
    txn.put(old, {"id": pa.array([1]), "v": pa.array(["x"])})
    with pytest.raises(PenstockError, match=r"TXN_CONFLICT.*schema"):
        txn.commit()


def test_dropped_and_unknown_tables_take_no_writes_but_keep_their_history(engine):
    ts = write(engine, "a", _1="x")
    schema = engine.table("d", "a")
    engine.execute_ddl("DROP TABLE d.a")
    txn = Txn(engine)
    txn.put(schema, {"id": pa.array([2]), "v": pa.array(["x"])})
    with pytest.raises(PenstockError, match="TABLE_UNKNOWN"):
        txn.commit()
    assert [keys for keys, _, _ in engine.read(*full_span(Span(schema.table_id)), ts, 10)]
    with pytest.raises(PenstockError, match="TABLE_UNKNOWN"):
        engine.prewrite(engine.begin(), [table_prefix(99) + b"k"], [b"v"])
    with pytest.raises(PenstockError, match="TABLE_UNKNOWN"):
        engine.prewrite(engine.begin(), [table_prefix(DDL_TABLE_ID) + b"k"], [b"v"])


def test_commit_may_be_repeated_and_rollback_may_not_undo_it(engine):
    txn = Txn(engine)
    put(txn, engine, "a", _1="x")
    ts = txn.commit()
    assert engine.commit(txn.start_ts) == ts
    with pytest.raises(PenstockError, match="committed"):
        engine.rollback(txn.start_ts)


def test_a_later_value_of_a_key_wins_within_a_transaction(engine):
    txn = Txn(engine)
    put(txn, engine, "a", _1="x")
    txn.prewrite()
    put(txn, engine, "a", _1="y")
    txn.prewrite()
    txn.commit()
    assert rows(engine, "a") == {1: "y"}


def test_rows_put_after_a_prewrite_are_committed_too(engine):
    txn = Txn(engine)
    txn.prewrite()
    put(txn, engine, "a", _1="x")
    txn.prewrite()
    put(txn, engine, "a", _2="y")
    txn.commit()
    assert rows(engine, "a") == {1: "x", 2: "y"}


def test_a_large_transaction_is_prewritten_in_bounded_calls(engine):
    calls = []
    whole = engine.prewrite

    def prewrite(start_ts, keys, values):
        calls.append(sum(map(len, keys)) + sum(map(len, values)))
        whole(start_ts, keys, values)

    engine.prewrite = prewrite
    with Txn(engine) as txn:
        put(txn, engine, "a", **{f"_{n}": "x" * 100_000 for n in range(50)})
    assert len(calls) == 3
    assert max(calls) <= PREWRITE_BYTES_MAX + 100_100
    assert len(rows(engine, "a")) == 50


def test_deletes_of_missing_rows_and_empty_transactions_change_nothing(engine):
    with Txn(engine) as txn:
        pass
    assert txn.commit_ts == txn.start_ts
    remove(engine, "a", 77)
    assert rows(engine, "a") == {}
    assert all(not engine.find(r.range_id).log for r in ranges_of(engine, "a"))


def test_resolved_ts_stays_below_the_oldest_lock_of_its_range(engine):
    txn = Txn(engine)
    put(txn, engine, "a", _1="x")
    txn.prewrite()
    fresh = engine.publish_resolved()
    of_a, of_b = (engine.find(ranges_of(engine, t)[0].range_id) for t in "ab")
    assert (of_a.resolved_ts, of_b.resolved_ts) == (txn.start_ts - 1, fresh)
    commit_ts = txn.commit()
    assert commit_ts > fresh
    assert engine.publish_resolved() == of_a.resolved_ts > commit_ts


def test_resolved_ts_never_falls_for_a_lock_that_comes_late(engine):
    late = Txn(engine)
    promised = engine.publish_resolved()
    put(late, engine, "a", _1="x")
    late.prewrite()
    engine.publish_resolved()
    assert engine.find(ranges_of(engine, "a")[0].range_id).resolved_ts == promised
    assert late.commit() > promised


def test_a_transaction_that_nobody_ends_is_rolled_back_in_time(engine, clock):
    lost = Txn(engine)
    put(lost, engine, "a", _1="x")
    lost.prewrite()
    clock.advance(0.9)
    engine.publish_resolved()
    clock.advance(0.2)
    assert engine.publish_resolved() == engine.find(ranges_of(engine, "a")[0].range_id).resolved_ts
    with pytest.raises(PenstockError, match="TXN_CONFLICT"):
        lost.commit()


def test_split_merge_and_move_keep_every_version_and_raise_epochs(engine):
    first = write(engine, "a", **{f"_{i}": "x" for i in range(10)})
    txn = Txn(engine)
    put(txn, engine, "a", _2="p", _7="q")
    txn.prewrite()
    left, right = engine.split(key_of(engine, "a", 5)[0].as_py())
    assert (left.end_key, left.epoch.version, right.epoch.version) == (right.start_key, 2, 2)
    assert engine.split(right.start_key) == [right]
    commit_ts = txn.commit()
    expected = dict.fromkeys(range(10), "x")
    assert rows(engine, "a", first) == expected
    expected |= {2: "p", 7: "q"}
    assert rows(engine, "a", commit_ts, page=3) == expected
    moved = engine.move_leader(right.range_id, 3)[0]
    assert (moved.store_id, moved.epoch.conf_ver, moved.epoch.version) == (3, 2, 2)
    merged = engine.merge(left.range_id)[0]
    assert (merged.start_key, merged.end_key, merged.epoch.version, merged.epoch.conf_ver) == (left.start_key, right.end_key, 3, 2)
    assert rows(engine, "a", commit_ts) == expected
    indices = [r.index for r in engine.find(merged.range_id).log]
    assert indices == sorted(set(indices))
    assert [r.commit_ts for r in engine.find(merged.range_id).log] == [first, commit_ts, commit_ts]
    with pytest.raises(PenstockError, match="REGION_NOT_FOUND"):
        engine.merge(right.range_id)
    with pytest.raises(PenstockError, match="neighbour"):
        engine.merge(merged.range_id)
    with pytest.raises(PenstockError, match="store 4"):
        engine.move_leader(merged.range_id, 4)


def test_tables_are_spread_over_stores_and_ranges_have_no_holes(engine):
    engine.split(key_of(engine, "a", 5)[0].as_py())
    engine.split(key_of(engine, "a", 2)[0].as_py())
    found = ranges_of(engine, "a")
    assert [r.start_key for r in found[1:]] == [r.end_key for r in found[:-1]]
    assert len({r.store_id for r in engine.list_ranges(b"", b"")}) == 3


def test_ddls_are_logged_in_their_own_range_with_their_own_ts(engine):
    ts = engine.execute_ddl("ALTER TABLE d.a ADD COLUMN n INT")
    info = engine.list_ranges(*full_span(DDL_SPAN))
    assert len(info) == 1
    record = engine.find(info[0].range_id).log[-1]
    assert record.commit_ts == ts
    assert engine.schema_history(engine.table("d", "a").table_id)[0][-1].version == ts


def test_a_table_without_a_primary_key_takes_equal_rows(engine):
    engine.execute_ddl("CREATE TABLE d.n (v VARCHAR(50))")
    schema = engine.table("d", "n")
    keys = []
    for _ in range(2):
        with Txn(engine) as txn:
            keys += txn.put(schema, {"v": pa.array(["same", "same"])}).to_pylist()
    assert len(set(keys)) == 4
    with Txn(engine) as txn:
        # How rows of a table without a primary key are updated: under the key that they have.
        txn._write(
            [table_prefix(schema.table_id) + keys[0]], encode_values(schema, {schema.columns[0].field_name: pa.array(["new"])}).to_pylist()
        )
        txn.delete(schema, pa.array(keys[1:2]))
    page = next(engine.read(*full_span(Span(schema.table_id)), engine.current_ts(), 10))
    assert [v[-4:] for v in page[1]] == [b"\x00new", b"same", b"same"]


def test_settings_are_checked():
    with pytest.raises(PenstockError, match="stores"):
        EngineSettings(stores=0)
