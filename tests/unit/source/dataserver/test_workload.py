import numpy as np
import pyarrow as pa
import pytest

from penstock.model.errors import PenstockError
from penstock.model.rows.row_key import encode_row_keys, full_span, table_end, table_prefix
from penstock.model.span import Span
from penstock.model.table import Column
from penstock.model.types import ColumnType, TypeKind
from penstock.source.dataserver.engine.engine import Engine, EngineSettings
from penstock.source.dataserver.rowcodec import decode_values, schema_versions
from penstock.source.dataserver.shop import TABLES, key_columns, random_column
from penstock.source.dataserver.workload import Workload, WorkloadSettings
from testing.twins.clock import SimulatedClock


def keys_of(engine, table):
    return [k for keys, _, _ in engine.read(*full_span(Span(table.table_id)), engine.current_ts(), 1000) for k in keys]


def test_it_writes_what_it_reports_on_tables_of_several_ranges_and_versions():
    engine = Engine(EngineSettings(stores=2))
    workload = Workload(engine, WorkloadSettings(rows=6000, seed=5, txn_rows=100))
    workload.setup()
    report = workload.run()
    assert report.rows == report.inserts + report.updates + report.deletes == 6000
    assert min(report.updates, report.deletes, report.transactions, report.rollbacks) > 0
    assert (report.ddls, report.conflicts) == (5, 0)
    tables = {t.table: t for t in engine.list_tables()}
    assert set(tables) == set(TABLES)
    assert [c.name for c in tables["orders"].columns][-1] == "priority"
    left = 0
    for name, table in tables.items():
        live = encode_row_keys(table, key_columns(table, np.sort(workload._live[name])), table_prefix(table.table_id)).to_pylist()
        assert keys_of(engine, table) == sorted(live)
        left += len(live)
        ranges = engine.list_ranges(table_prefix(table.table_id), table_end(table.table_id))
        assert len(ranges) == 4
        assert {r.store_id for r in ranges} == {1, 2}
        assert sum(bool(engine.find(r.range_id).log) for r in ranges) >= 2, "writes reach several ranges"
    assert left == report.inserts - report.deletes
    records = [r for s in engine._ranges.values() for r in s.log]
    parts = {}
    for record in records:
        parts.setdefault(record.commit_ts, []).append(record)
    assert max(len(p) for p in parts.values()) > 4, "transactions reach several tables and ranges"


def test_small_transactions_insert_every_number_once():
    engine = Engine(EngineSettings(stores=2))
    workload = Workload(engine, WorkloadSettings(rows=4000, seed=3, txn_rows=4, update_share=0.5, delete_share=0.3, ddls=False))
    workload.setup()
    report = workload.run()
    left = sum(len(keys_of(engine, table)) for table in engine.list_tables())
    assert left == report.inserts - report.deletes


def test_the_same_seed_writes_the_same_rows_and_another_one_others():
    def written(seed):
        engine = Engine()
        Workload(engine, WorkloadSettings(rows=500, seed=seed, txn_rows=50, ddls=False)).run()
        return [v[9:] for s in engine._ranges.values() if s.table_id for r in s.log for v in r.values if v]

    assert written(3) == written(3) != written(4)


def test_the_rate_is_kept_by_the_clock():
    clock = SimulatedClock()
    engine = Engine(clock=clock)
    workload = Workload(engine, WorkloadSettings(rate=1000, seed=1, txn_rows=100, ddls=False), clock).start()
    for _ in range(20):
        clock.wait_for_waiters(1)
        clock.advance(0.1)
    clock.wait_for_waiters(1)
    report = workload.stop()
    assert 1800 <= report.rows <= 2400
    assert not workload.running


def test_it_survives_ddls_of_others():
    engine = Engine()
    workload = Workload(engine, WorkloadSettings(rows=2000, txn_rows=50, ddls=False))
    workload.setup()
    done = engine.commit
    commits = []

    def commit(start_ts):
        commits.append(start_ts)
        if len(commits) == 5:
            engine.execute_ddl("ALTER TABLE shop.orders ADD COLUMN extra JSON")
        if len(commits) == 10:
            engine.execute_ddl("DROP TABLE shop.assets")
        return done(start_ts)

    engine.commit = commit
    report = workload.run()
    assert (report.rows, report.conflicts) == (2000, 2)
    orders = engine.table("shop", "orders")
    values = [v for _, page, _ in engine.read(*full_span(Span(orders.table_id)), engine.current_ts(), 100) for v in page]
    newest = [v for v, version in zip(values, schema_versions(pa.array(values)), strict=True) if version == orders.version]
    assert any(decode_values(orders, pa.array(newest))[-1].to_pylist())


def test_a_failure_reaches_whoever_stops_it():
    engine = Engine()
    workload = Workload(engine, WorkloadSettings(rows=10_000, txn_rows=10))
    workload.setup()
    for name in TABLES:
        engine.execute_ddl(f"DROP TABLE shop.{name}")
    workload.setup = lambda: None
    workload.start()
    with pytest.raises(PenstockError, match="TABLE_UNKNOWN"):
        workload.join(120)


@pytest.mark.parametrize("kind", list(TypeKind))
def test_every_type_has_plausible_values(kind):
    column_type = ColumnType(kind, length=9, scale=2, elems=("a", "b", "c") if kind in (TypeKind.ENUM, TypeKind.SET) else ())
    values = random_column(Column(1, "c", column_type), 500, np.random.default_rng(1))
    assert (values.type, len(values), values.null_count) == (column_type.arrow(), 500, 0)
    assert len(set(values.to_pylist())) > 2
    if kind == TypeKind.DECIMAL:
        assert all(len(v.split(".")[1]) == 2 for v in values.to_pylist())
    if kind == TypeKind.DATETIME:
        assert all(len(v) == 22 for v in values.to_pylist())


def test_settings_are_checked():
    with pytest.raises(PenstockError, match="rate"):
        WorkloadSettings(rate=-1)
    with pytest.raises(PenstockError, match="shares"):
        WorkloadSettings(update_share=0.9, delete_share=0.2)
