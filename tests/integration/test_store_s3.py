"""The event store with its objects on S3: read directly with credentials, through Flight without, taken over by another server."""

import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.config.connections import Connections
from penstock.config.store_objects import open_objects
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight import reached_objects
from penstock.store.flight.client import FlightStoreClient
from penstock.store.flight.server import FlightService
from penstock.store.objects.objects import ObjectSpace
from penstock.store.settings import StoreSettings
from testing.checks.change_batches import TABLE, both_sides, read_rows
from testing.servers.seaweed import seaweed_s3

SPAN = Span(TABLE.table_id)
ROWS = [(ts, Op.INSERT, ts * 100 + n, "x" * 20) for ts in range(10, 110) for n in range(100)]


class CountingService(FlightService):
    """Notes which objects it streamed."""

    def __init__(self, store: ColumnarEventStore) -> None:
        super().__init__(store)
        self.streamed: list[object] = []

    def do_get(self, context: object, ticket: Any) -> Any:
        self.streamed.append(ticket)
        return super().do_get(context, ticket)


@pytest.mark.integration
def test_objects_on_s3_are_written_once_and_read_directly(tmp_path: Path) -> None:
    with seaweed_s3(tmp_path / "s3") as server:
        settings = StoreSettings(objects=server.uri("events"))

        def opened() -> ObjectSpace:
            space = open_objects(settings, "mysql://db:3306", Connections({}).resolve)
            assert space is not None
            return space

        uri, options = opened().uri, opened().options
        assert server.secret_key in options.values()
        assert server.secret_key not in f"{uri} {opened()!r} {settings}"
        with ColumnarEventStore(tmp_path / "store", objects=opened(), shared=True) as store:
            store.register_span(SPAN.span_id, SPAN, 0)
            store.register_span(DDL_SPAN.span_id, DDL_SPAN, 0)
            store.put_schemas([TABLE])
            durable = threading.Event()
            store.append(SPAN.span_id, both_sides(SPAN.span_id, ROWS), durable.set)
            assert durable.wait(120)
            for ts in (60, 109):
                store.advance_resolved_ts(SPAN.span_id, ts)
                assert store.flush(SPAN.span_id)
            assert not store.objects.put_new(store.objects.list_names("spans/")[0], [b"other bytes"])
            service = CountingService(store)
            client = FlightStoreClient(service.location, service.token, options)
            assert read_rows(client.open_changes(SPAN.span_id, 5, 109)) == ROWS
            assert read_rows(client.open_changes(SPAN.span_id, 59, 61)) == [r for r in ROWS if 59 < r[0] <= 61]
            assert service.streamed == [], "an executor with options reads by itself"
            poor = FlightStoreClient(service.location, service.token)
            wrong = FlightStoreClient(service.location, service.token, options | {"secret-access-key": "another"})
            for client_without in (poor, wrong):
                reached_objects._cache._blocks.clear()
                assert read_rows(client_without.open_changes(SPAN.span_id, 5, 109)) == ROWS
                client_without.close()
                assert service.streamed
                service.streamed.clear()
            with ColumnarEventStore(tmp_path / "other", objects=opened(), shared=True) as successor:
                assert successor.register_span(SPAN.span_id, SPAN, 0) == 109
                assert successor.schema_history(TABLE.table_id) == (TABLE,)
                assert read_rows(successor.collect_changes(SPAN.span_id, 5, 109)) == ROWS
                with pytest.raises(PenstockError, match=r"\[FENCED\]"):
                    store.merge(SPAN.span_id)
            gone = next(name for name in store.objects.list_names("spans/") if name.endswith(".arrow"))
            store.objects.delete(gone)
            reached_objects._cache._blocks.clear()
            emptied = FlightStoreClient(service.location, service.token, options | {"region": "us-east-2"})
            with pytest.raises(PenstockError, match=r"\[OBJECT_MISSING\]"):
                read_rows(emptied.open_changes(SPAN.span_id, 5, 109))
            emptied.close()
            client.close()
            service.close()
