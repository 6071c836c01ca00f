"""Objects out of a reader's reach come through the service, and a read that loses its objects can be begun again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.model.batch import Op
from penstock.model.errors import ErrorKind, PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight import reached_objects
from penstock.store.flight.client import FlightStoreClient
from penstock.store.flight.reached_objects import LEFT_ALONE_S, DirectObjects, Reach, StreamedObjects
from penstock.store.flight.server import FlightService
from penstock.store.objects.objects import ObjectSpace
from penstock.store.settings import StoreSettings
from testing.checks.change_batches import TABLE, Row, append_durably, read_rows
from testing.twins.clock import SimulatedClock

SPAN = Span(TABLE.table_id)
SPAN_ID = SPAN.span_id
ROWS: list[Row] = [(ts, Op.INSERT, ts, f"row {ts}") for ts in range(11, 31)]
FORGETFUL = StoreSettings(history_seconds=0, checkpoint_seconds=0, gc_ttl_seconds=0, objects_interval_s=86_400)


class Far:
    """A store whose objects no reader of this process reaches by itself, obstore gives every caller another memory; or files."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.store = ColumnarEventStore(folder, FORGETFUL, objects=ObjectSpace(uri), shared=True)
        for span in (SPAN, DDL_SPAN):
            self.store.register_span(span.span_id, span, 0)
        self.store.put_schemas([TABLE])
        for ts in (20, 30):
            append_durably(self.store, SPAN_ID, [row for row in ROWS if ts - 10 < row[0] <= ts], ts)
            assert self.store.flush(SPAN_ID)
        self.service = FlightService(self.store)

    def client(self, options: dict[str, str] | None) -> FlightStoreClient:
        return FlightStoreClient(self.service.location, self.service.token, options)


@pytest.fixture(params=["memory", "files"])
def far(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Far]:
    made = Far(tmp_path / "store", "memory:///store" if request.param == "memory" else (tmp_path / "shared").as_uri())
    yield made
    made.service.close()
    made.store.close()


@pytest.mark.parametrize("options", [None, {}])
def test_what_the_storage_does_not_give_comes_through_the_service(far: Far, options: dict[str, str] | None) -> None:
    client = far.client(options)
    assert read_rows(client.open_changes(SPAN_ID, 10, 30)) == ROWS
    assert read_rows(client.open_changes(SPAN_ID, 19, 21)) == [row for row in ROWS if 19 < row[0] <= 21]
    client.close()


def test_a_read_under_way_survives_a_merge_and_one_whose_objects_were_collected_passes(far: Far) -> None:
    client = far.client({})
    before = client.open_changes(SPAN_ID, 10, 30)
    assert far.store.merge(SPAN_ID) == 2
    assert read_rows(before) == ROWS
    late = client.open_changes(SPAN_ID, 10, 30)
    # As after the lease of a reader that was asleep: its objects leave manifest, checkpoints and storage.
    far.store.needs._expiring.clear()
    for _ in range(2):
        far.store.collect_garbage()
    assert len([n for n in far.store.objects.list_names("spans/") if n.endswith(".arrow")]) == 1
    reached_objects._cache._blocks.clear()
    with pytest.raises(PenstockError) as caught:
        read_rows(late)
    assert (caught.value.code, caught.value.kind) == ("OBJECT_COLLECTED", ErrorKind.TRANSIENT)
    assert {row[2] for row in read_rows(client.open_changes(SPAN_ID, 0, 30))} == {row[2] for row in ROWS}
    client.close()


def test_two_readers_go_on_while_objects_are_merged_and_collected_under_them(far: Far) -> None:
    """Each reads states again and again, as windows would; what fails must pass with the next attempt."""
    stop, problems, reads = threading.Event(), [], [0, 0]

    def read(number: int) -> None:
        client = far.client({} if number else None)
        while not stop.is_set() or reads[number] < 3:
            ts = far.store.resolved_ts(SPAN_ID)
            try:
                found = {row[2] for row in read_rows(client.open_changes(SPAN_ID, 0, ts))}
            except PenstockError as error:
                if error.kind is not ErrorKind.TRANSIENT and error.code != "STALE_READ":
                    problems.append(str(error))
                    break
                continue
            if found != set(range(11, ts + 1)):
                problems.append(f"{sorted(found)} at {ts}")
            reads[number] += 1
        client.close()

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    # Files are synced, which takes its time.
    for ts in range(31, 61 if far.store.objects.uri.startswith("memory") else 37):
        append_durably(far.store, SPAN_ID, [(ts, Op.INSERT, ts, "more")], ts)
        far.store.flush(SPAN_ID)
        far.store.merge(SPAN_ID)
        far.store.needs._expiring.clear()
        far.store.collect_garbage()
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == [], problems
    assert min(reads) >= 3


class Broken(StreamedObjects):
    """A storage that does not answer."""

    def __init__(self) -> None:
        super().__init__({}, lambda _: iter(()))
        self.asked = 0

    def get_range(self, path: str, start: int, length: int) -> pa.Buffer:
        self.asked += 1
        raise OSError("connection refused")


def test_a_storage_that_does_not_answer_is_left_alone_for_a_while() -> None:
    clock, storage = SimulatedClock(), Broken()
    payload = pa.RecordBatch.from_arrays([pa.array([b"bytes of it"], pa.large_binary())], ["bytes"])
    streamed = StreamedObjects({"a": b"ticket"}, lambda _: iter([payload]))
    direct = DirectObjects(storage, streamed, Reach(clock))
    for _ in range(3):
        assert direct.get_range("a", 0, 5).to_pybytes() == b"bytes"
    assert storage.asked == 1
    clock.advance(LEFT_ALONE_S)
    assert direct.get_range("a", 9, 5).to_pybytes() == b"it"
    assert storage.asked == 2
