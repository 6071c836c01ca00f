"""The Kafka target against librdkafka's own mock cluster, three brokers in another process.

The mock checks the order of a transaction's requests, but forgets the offsets that a transaction carries and shows what was aborted, so
what comes of repeated attempts is proven elsewhere (``tests/unit/sink/kafka``), against a broker that keeps both.
"""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.model.batch import Op
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from penstock.sink.catalog import open_maintainer, open_sink
from penstock.sink.contract import DispatcherId, DispatcherWork, DmlEvent
from penstock.sink.kafka.transactions import KEPT
from penstock.target.kind import SinkRun
from testing.servers.kafka.consumer import canal_changes, read_topics, rebuilt
from testing.servers.kafka.mock_cluster import mock_cluster

T0 = compose_ts(1_700_000_000_000)
TABLE = TableSchema(7, "shop", "orders", T0, (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True),))
ROWS = 500


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    with mock_cluster() as brokers:
        yield brokers
    KEPT.close()


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_cluster_takes_windows_and_watermarks(brokers: str, delivery: str) -> None:
    uri, run = f"kafka://{brokers}/{delivery}?delivery={delivery}", SinkRun("mine", 1)
    sink = open_sink(uri, {}, None, run)
    for span in range(2):
        dispatcher = DispatcherId(7, span, 2)
        sink.open_dispatcher(DispatcherWork(dispatcher, TABLE, T0, T0 + 10**6))
        ids = range(span * ROWS, (span + 1) * ROWS)
        columns = [pa.array([T0 + 1 + i for i in ids], pa.uint64()), pa.array([Op.INSERT] * ROWS, pa.uint8()), pa.array(ids, pa.int64())]
        sink.add_dml_event(DmlEvent(dispatcher, TABLE, pa.RecordBatch.from_arrays(columns, names=["_ts", "_op", "c1"])))
    assert [sink.close_dispatcher(DispatcherId(7, span, 2)).rows for span in range(2)] == [ROWS, ROWS]
    sink.close()
    open_maintainer(uri, {}, lambda: None, run=run).publish_checkpoint(T0 + 10**6)
    read = read_topics(brokers, [f"{delivery}.shop.orders"])
    assert set(rebuilt(canal_changes(read), "id")) == set(map(str, range(2 * ROWS)))
    assert [m.body["_tidb"]["watermarkTs"] for m in read_topics(brokers, [f"{delivery}.control"])] == [T0 + 10**6]
