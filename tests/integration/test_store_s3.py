"""The event store with its objects on S3, read through Flight with the executor's own credentials."""

import threading
from pathlib import Path

import pytest

from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.client import FlightStoreClient
from penstock.store.flight.server import FlightService
from penstock.store.objects.objects import ObjectSpace
from testing.checks.change_batches import TABLE, both_sides, read_rows
from testing.servers.seaweed import seaweed_s3

SPAN = Span(TABLE.table_id)
ROWS = [(ts, Op.INSERT, ts * 100 + n, "x" * 20) for ts in range(10, 110) for n in range(100)]


@pytest.mark.integration
def test_objects_on_s3_are_written_once_and_read_directly(tmp_path: Path) -> None:
    with seaweed_s3(tmp_path / "s3") as server:
        options = {
            "endpoint": server.endpoint,
            "access_key_id": server.access_key,
            "secret_access_key": server.secret_key,
            "region": "us-east-1",
        }
        uri = f"s3://{server.bucket}/events"
        with ColumnarEventStore(tmp_path / "store", objects=ObjectSpace(uri, options=options)) as store:
            store.register_span(SPAN.span_id, SPAN, 0)
            store.register_span(DDL_SPAN.span_id, DDL_SPAN, 0)
            store.put_schemas([TABLE])
            durable = threading.Event()
            store.append(SPAN.span_id, both_sides(SPAN.span_id, ROWS), durable.set)
            assert durable.wait(20)
            for ts in (60, 109):
                store.advance_resolved_ts(SPAN.span_id, ts)
                assert store.flush(SPAN.span_id)
            assert not store.objects.put_new(store.objects.list_names("spans/")[0], [b"other bytes"])
            service = FlightService(store)
            client = FlightStoreClient(service.location, service.token, options)
            assert read_rows(client.open_changes(SPAN.span_id, 5, 109)) == ROWS
            assert read_rows(client.open_changes(SPAN.span_id, 59, 61)) == [r for r in ROWS if 59 < r[0] <= 61]
            gone = next(name for name in store.objects.list_names("spans/") if name.endswith(".arrow"))
            store.objects.delete(gone)
            with pytest.raises(PenstockError, match=r"\[OBJECT_MISSING\]"):
                read_rows(client.open_changes(SPAN.span_id, 5, 109))
            client.close()
            service.close()
