import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pyarrow.flight as fl
import pytest

from penstock.model.batch import BatchKind, Op
from penstock.model.clock import SystemClock
from penstock.model.errors import ErrorKind, PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.store.contract import WindowWish
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.client import FlightStoreClient
from penstock.store.flight.credentials import ReaderCertificates, join_token, make_tls, split_token
from penstock.store.flight.server import FlightService, WindowRequest
from penstock.store.flight.ticket import RowsTicket, TicketSigner
from testing.checks.change_batches import TABLE, both_sides, read_rows
from testing.twins.clock import SimulatedClock

SPAN = Span(TABLE.table_id)
SPAN_ID = SPAN.span_id
ROWS = [(ts, Op.INSERT, ts, f"row {ts}") for ts in range(10, 40)]
TOMBSTONES = [(ts, Op.DELETE, ts - 10, f"row {ts - 10}") for ts in range(20, 40, 3)]
ORDERED = sorted([*ROWS, *TOMBSTONES], key=lambda r: (r[0], r[1] is not Op.DELETE))
READER = """
import sys
from penstock.store.flight.client import FlightStoreClient
from testing.checks.change_batches import read_rows
client = FlightStoreClient(sys.argv[1], sys.stdin.read())
rows = read_rows(client.open_changes(int(sys.argv[2]), 5, 39))
print(len(rows), rows[0][3], rows[-1][3], client.schema_history(7)[0].full_name)
"""
STRANGER = """
import json, sys
import pyarrow.flight as fl
try:
    with fl.FlightClient(sys.argv[1], **json.load(sys.stdin)) as client:
        list(client.do_action(fl.Action("plan_window", bytes(128 << 20)), fl.FlightCallOptions(timeout=60)))
except fl.FlightError as error:
    print(type(error).__name__)
"""


def peak_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ColumnarEventStore]:
    with ColumnarEventStore(tmp_path / "store") as opened:
        opened.register_span(SPAN_ID, SPAN, 0)
        opened.register_span(DDL_SPAN.span_id, DDL_SPAN, 0)
        opened.put_schemas([TABLE])
        durable = threading.Event()
        opened.append(SPAN_ID, both_sides(SPAN_ID, [*ROWS, *TOMBSTONES]), durable.set)
        assert durable.wait(120)
        for ts in (25, 39):
            opened.advance_resolved_ts(SPAN_ID, ts)
            opened.advance_resolved_ts(DDL_SPAN.span_id, ts)
            if ts == 25:
                opened.flush(SPAN_ID)
        yield opened


@pytest.fixture(params=["port", "socket", "tls"])
def service(store: ColumnarEventStore, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[FlightService]:
    tls = make_tls(["127.0.0.1"], SystemClock()) if request.param == "tls" else None
    service = FlightService(store, socket=tmp_path_factory.mktemp("f") / "s" if request.param == "socket" else None, tls=tls)
    yield service
    service.close()


@pytest.fixture
def client(service: FlightService) -> Iterator[FlightStoreClient]:
    client = FlightStoreClient(service.location, service.token)
    yield client
    client.close()


@pytest.mark.parametrize("proxy", ["", "http://127.0.0.1:9"], ids=["plain", "with a proxy for the web"])
def test_another_process_reads_objects_and_memory(service: FlightService, proxy: str) -> None:
    command = [sys.executable, "-c", READER, service.location, str(SPAN_ID)]
    env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    env |= dict.fromkeys(("http_proxy", "https_proxy", "grpc_proxy"), proxy) if proxy else {}
    done = subprocess.run(command, input=service.token, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split(" ") == [str(len(ORDERED)), "row", "10", "row", "39", "shop.orders\n"]


def test_a_client_travels_by_pickle_and_hides_its_token(service: FlightService) -> None:
    client = pickle.loads(pickle.dumps(FlightStoreClient(service.location, service.token)))
    assert read_rows(client.open_changes(SPAN_ID, 5, 39)) == ORDERED
    assert service.token not in repr(client)
    assert client.span_status()[SPAN_ID].resolved_ts == 39
    client.close()


def test_rows_that_are_flushed_after_the_answer_are_still_given(store: ColumnarEventStore, client: FlightStoreClient) -> None:
    handle = client.open_changes(SPAN_ID, 5, 39)
    assert store.flush(SPAN_ID)
    assert store.stats().spans[0].memory_rows == 0
    assert read_rows(handle) == ORDERED


def test_a_reader_without_the_files_streams_objects(
    store: ColumnarEventStore, service: FlightService, client: FlightStoreClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service says a directory that does not exist here, as on another machine."""
    monkeypatch.setattr(store.objects, "uri", "file:///nowhere/on/this/machine")
    assert read_rows(client.open_changes(SPAN_ID, 5, 39)) == ORDERED
    assert read_rows(client.open_changes(SPAN_ID, 21, 22)) == [r for r in ORDERED if r[0] == 22]


def test_plans_are_those_of_the_store(store: ColumnarEventStore, client: FlightStoreClient) -> None:
    for nbytes_max in (1, 500, 1 << 30):
        assert client.plan_window(WindowWish([SPAN_ID], [7], 5, nbytes_max)) == store.plan_window(WindowWish([SPAN_ID], [7], 5, nbytes_max))


def test_calls_without_the_token_are_refused(service: FlightService) -> None:
    stranger = FlightStoreClient(service.location, join_token("guess", split_token(service.token)[1]))
    calls = [stranger.span_status, lambda: stranger.open_changes(SPAN_ID, 5, 39), lambda: list(stranger.stream(b"x" * 64))]
    for call in calls:
        with pytest.raises(PenstockError, match=r"\[TICKET_INVALID\]") as caught:
            call()
        assert "guess" not in str(caught.value)
    stranger.close()


def test_tickets_that_were_not_signed_here_are_refused(service: FlightService, client: FlightStoreClient) -> None:
    foreign = TicketSigner(b"another secret", SimulatedClock())
    ticket = foreign.sign(RowsTicket(SPAN_ID, BatchKind.DATA, 1, 5, 39, 1 << 60))
    for bad in (b"", b"junk", ticket, ticket[:-1]):
        with pytest.raises(PenstockError, match=r"\[TICKET_INVALID\]"):
            list(client.stream(bad))


def test_errors_keep_their_code_across_flight(store: ColumnarEventStore, client: FlightStoreClient) -> None:
    for span_id, window, code in [(99, (1, 2), "SPAN_UNKNOWN"), (SPAN_ID, (5, 99), "WINDOW_INVALID")]:
        with pytest.raises(PenstockError) as caught:
            client.open_changes(span_id, *window)
        assert caught.value.code == code
    store.reset_span(SPAN_ID, 39)
    with pytest.raises(PenstockError, match=r"\[STALE_READ\]"):
        client.open_changes(SPAN_ID, 0, 39)


def test_a_service_that_is_gone_is_a_transient_error(service: FlightService, client: FlightStoreClient) -> None:
    assert client.span_status()
    service.close()
    with pytest.raises(PenstockError, match=r"\[STORE_UNREACHABLE\]") as caught:
        client.span_status()
    assert caught.value.kind is ErrorKind.TRANSIENT


def test_a_malformed_request_is_answered_with_a_code(service: FlightService) -> None:
    token, reader = split_token(service.token)
    shown = {"tls_root_certs": reader.ca, "cert_chain": reader.certificate, "private_key": reader.key} if reader else {}
    options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])
    with fl.FlightClient(service.location, **shown) as raw, pytest.raises(fl.FlightError, match=r"\[TICKET_INVALID\]"):
        raw.get_flight_info(fl.FlightDescriptor.for_command(b"{"), options)
    deep = b'{"span_id": 1, "other":' + b"[" * 100_000
    with fl.FlightClient(service.location, **shown) as raw:
        for descriptor in (fl.FlightDescriptor.for_path("x"), fl.FlightDescriptor.for_command(deep)):
            with pytest.raises(fl.FlightError) as wrong:
                raw.get_flight_info(descriptor, options)
            assert "[TICKET_INVALID]" in str(wrong.value)
            assert "Traceback" not in str(wrong.value)
        for action, body in (("changed_histories", b'{"x": [1, 2]}'), ("plan_window", deep), ("schema_history", b"1e400"), ("none", b"")):
            with pytest.raises(fl.FlightError) as wrong:
                list(raw.do_action(fl.Action(action, body), options))
            assert "[TICKET_INVALID]" in str(wrong.value)
            assert "Traceback" not in str(wrong.value)
    with fl.FlightClient(service.location, **shown) as raw:
        command = msgspec.json.encode(WindowRequest(SPAN_ID, 5, 39))
        info = raw.get_flight_info(fl.FlightDescriptor.for_command(command), options)
        uris = [location.uri for e in info.endpoints for location in e.locations]
        assert len(info.endpoints) == 4
        assert all(uri.startswith(b"file:///") and uri.endswith(b".arrow") for uri in uris)
        assert all(token.encode() not in e.ticket.ticket for e in info.endpoints)


@pytest.mark.parametrize("what", ["nothing", "another's"])
def test_a_stranger_on_a_port_gets_no_message_through(store: ColumnarEventStore, what: str) -> None:
    """A message of 128 MiB, from a process that has no certificate of the service: nothing of it is held, and nothing is answered."""
    tls, foreign = make_tls(["127.0.0.1"], SystemClock()), make_tls(["127.0.0.1"], SystemClock()).reader
    with closing(FlightService(store, tls=tls)) as service:
        shown = {"cert_chain": foreign.certificate, "private_key": foreign.key} if what == "another's" else {}
        Path("/proc/self/clear_refs").write_text("5")
        before = peak_kib()
        command = [sys.executable, "-c", STRANGER, service.location]
        told = json.dumps({"tls_root_certs": tls.reader.ca, **shown})
        done = subprocess.run(command, input=told, capture_output=True, text=True, timeout=120, check=False)
        assert done.stdout.strip() == "FlightUnavailableError", done.stdout + done.stderr
        assert peak_kib() - before < 64 * 1024
        with closing(FlightStoreClient(service.location, service.token)) as friend:
            assert read_rows(friend.open_changes(SPAN_ID, 5, 39)) == ORDERED


def test_a_reader_trusts_no_other_service(store: ColumnarEventStore) -> None:
    """One that listens where the service did gets no token: readers know theirs by its certificate."""
    tls, other = make_tls(["127.0.0.1"], SystemClock()), make_tls(["127.0.0.1"], SystemClock())
    with closing(FlightService(store, tls=other)) as service:
        mixed = ReaderCertificates(tls.reader.ca, other.reader.certificate, other.reader.key)
        token = join_token(split_token(service.token)[0], mixed)
        with closing(FlightStoreClient(service.location, token)) as client, pytest.raises(PenstockError, match="STORE_UNREACHABLE"):
            client.span_status()


def test_the_certificate_names_the_advertised_host_and_the_operators_own_is_shown(store: ColumnarEventStore) -> None:
    clock = SystemClock()
    wrong = make_tls(["elsewhere.example"], clock)
    with closing(FlightService(store, tls=wrong)) as service:
        client = FlightStoreClient(service.location, service.token)
        with closing(client), pytest.raises(PenstockError, match="STORE_UNREACHABLE"):
            client.span_status()
    operators = make_tls(["localhost"], clock)
    tls = make_tls([], clock, (operators.certificate, operators.key, operators.reader.ca.encode()))
    with closing(FlightService(store, tls=tls, advertised_host="localhost")) as service:
        assert service.location == f"grpc+tls://localhost:{service.port}"
        with closing(FlightStoreClient(service.location, service.token)) as client:
            assert client.span_status()[SPAN_ID].resolved_ts == 39
    with closing(FlightService(store, advertised_host="fd00::7", advertised_port=443)) as service:
        assert service.location == "grpc://[fd00::7]:443"


def test_a_token_that_was_cut_is_refused(store: ColumnarEventStore) -> None:
    token = join_token("a", make_tls(["h"], SystemClock()).reader)
    assert "PRIVATE" not in repr(split_token(token))
    for cut in (token[:-5], "a.b"):
        with pytest.raises(PenstockError, match=r"\[CONFIG_INVALID\]"):
            FlightStoreClient("grpc+tls://h:1", cut)
