"""A message is posted until it is taken; what comes of every other answer."""

import random
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.model.errors import PenstockError
from penstock.sink.http.dead_letters import DeadLetters
from penstock.sink.http.delivery import Delivery
from penstock.sink.http.letter_box import HttpLetterBox
from penstock.sink.http.messages import Message, Place, checkpoint_message, rows_message
from penstock.sink.http.settings import address_of, read_settings
from testing.servers.http_receiver import Fault, Receiver, http_receiver
from testing.twins.clock import HastyClock

SECRET = "a secret of many characters"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver(SECRET.encode()) as opened:
        yield opened


def message(number: int = 1) -> Message:
    settings = read_settings("http+json://h/", {})[1]
    event = b'{"before":null,"after":{"id":%d,"note":"n"},"source":{"commit_ts":5},"op":"c"}' % number
    return rows_message(settings, Place("f", "7-0/0", f"{number:08d}"), {"schema": "shop", "table": "orders"}, 1, event)


def deliver(receiver: Receiver, *messages: Message, clock: HastyClock | None = None, folder: Path | None = None, **options: str) -> None:
    given = {"secret": SECRET, "request-timeout": "20s"} | options
    uri, settings = read_settings(receiver.uri, given)
    letters = None if folder is None else DeadLetters.at(folder.as_uri(), "f", None, settings.dead_letters_max)
    delivery = Delivery(address_of(uri), settings, clock or HastyClock(), random.Random(1), None, letters)
    with closing(delivery):
        for one in messages:
            delivery.deliver(one, threading.Event())


def script(receiver: Receiver, *faults: Fault) -> None:
    left = list(faults)
    receiver.faults = lambda _: left.pop(0) if left else None


ANSWERS = [
    pytest.param(Fault(500), id="500"),
    pytest.param(Fault(503, take=True), id="taken, answered 503"),
    pytest.param(Fault(408), id="408"),
    pytest.param(Fault(cut=True), id="answer cut"),
    pytest.param(Fault(cut=True, take=True), id="taken, answer cut"),
    pytest.param(Fault(429, (("Retry-After", "7"),)), id="429"),
    pytest.param(Fault(400), id="400 once"),
]


@pytest.mark.parametrize("fault", ANSWERS)
def test_it_is_tried_again_and_applied_once(receiver: Receiver, fault: Fault) -> None:
    script(receiver, fault, fault)
    clock = HastyClock()
    deliver(receiver, message(1), message(2), clock=clock)
    assert receiver.state("shop.orders") == [{"id": 1, "note": "n"}, {"id": 2, "note": "n"}]
    assert len(receiver.changes["shop.orders"]) == 2
    assert [r.headers["idempotency-key"] for r in receiver.requests] == [message(1).id] * 3 + [message(2).id]
    assert [r.headers["webhook-id"] for r in receiver.requests] == [message(1).id] * 3 + [message(2).id]
    assert receiver.repeats == (2 if fault.take else 0)
    wanted = [7.0, 7.0] if fault.headers else [0.1, 0.2]
    assert [0.75 * least <= pause <= least for pause, least in zip(clock.pauses_s, wanted, strict=True)] == [True, True]


def test_a_date_says_when_to_come_again(receiver: Receiver) -> None:
    script(receiver, Fault(503, (("Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT"),)), Fault(429, (("Retry-After", "soon"),)))
    clock = HastyClock()
    deliver(receiver, message(), clock=clock)
    assert all(pause <= 0.2 for pause in clock.pauses_s)
    assert len(clock.pauses_s) == 2


@pytest.mark.parametrize(
    ("fault", "code"),
    [(Fault(500), "SINK_UNAVAILABLE"), (Fault(429, (("Retry-After", "3600"),)), "SINK_UNAVAILABLE"), (Fault(422), "SINK_REFUSED")]
    + [(Fault(status), "SINK_UNWRITABLE") for status in (301, 401, 403, 404)],
)
def test_what_does_not_end_is_said(receiver: Receiver, fault: Fault, code: str) -> None:
    said = Fault(fault.status, (*fault.headers, ("Location", "http://127.0.0.1:1/other")), b'no\x00 <b>secret="geheim"</b>')
    receiver.faults = lambda _: said
    with pytest.raises(PenstockError, match=rf"{code}.*127\.0\.0\.1.*answered {fault.status}") as error:
        deliver(receiver, message())
    assert "geheim" not in str(error.value)
    assert SECRET not in str(error.value)
    assert not receiver.rows
    first = 1 if fault.status in {301, 401, 403, 404} or fault.headers else 3
    assert len(receiver.requests) >= first
    assert (len(receiver.requests) == 1) == (first == 1)
    assert (len(receiver.requests) == 3) == (code == "SINK_REFUSED")


def test_an_answer_that_repeats_what_it_was_asked_shows_no_secret(receiver: Receiver, tmp_path: Path) -> None:
    secrets = ["tok_1", SECRET, "us er", "pa:ss w", "us er:pa:ss w", "dXMgZXI6cGE6c3Mgdw==", "ge heim+1", "ge%20heim%2B1", "ge+heim%2B1"]
    receiver.url = receiver.url.replace("://", "://us%20er:pa%3Ass%20w@")
    given = receiver.uri + "?code=ge%20heim%2B1"
    receiver.faults = lambda _: Fault(422, body=" | ".join(secrets).encode())
    uri, settings = read_settings(given, {"token": "tok_1", "secret": SECRET, "dead-letter": tmp_path.as_uri()})
    for letters in (None, DeadLetters.at(tmp_path.as_uri(), "f", None, 9)):
        with closing(Delivery(address_of(uri), settings, HastyClock(), random.Random(1), None, letters)) as delivery:
            if letters is None:
                with pytest.raises(PenstockError, match=r"SINK_REFUSED.*answered 422 \(\*\*\* \| ") as refused:
                    delivery.deliver(message(), threading.Event())
                said = str(refused.value)
            else:
                delivery.deliver(message(), threading.Event())
                said = next(tmp_path.rglob("*.json")).read_text()
        assert [secret for secret in secrets if secret in said] == []


@pytest.mark.parametrize(("wanted", "posts"), [("99999999999999999999", 1), ("-5", 2), ("Fri, 31 Dec 9999 23:59:59 GMT", 1), (",", 2)])
def test_odd_words_of_when_to_come_again(receiver: Receiver, wanted: str, posts: int) -> None:
    """A time that is beyond all patience ends the attempt; what is no time is a pause as usual."""
    script(receiver, Fault(503, (("Retry-After", wanted),)))
    if posts == 1:
        with pytest.raises(PenstockError, match="SINK_UNAVAILABLE"):
            deliver(receiver, message())
    else:
        deliver(receiver, message())
    assert len(receiver.requests) == posts


def test_a_body_that_is_too_large_says_what_helps(receiver: Receiver) -> None:
    receiver.faults = lambda _: Fault(413)
    with pytest.raises(PenstockError, match="SINK_REFUSED") as refused:
        deliver(receiver, message())
    assert "batch-size" in (refused.value.hint or "")


def test_an_answer_without_end_is_read_in_part(receiver: Receiver) -> None:
    script(receiver, Fault(200, body=b"x" * (1 << 22), take=True))
    deliver(receiver, message(1), message(2))
    assert len(receiver.state("shop.orders")) == 2


def test_nobody_waits_longer_than_the_time_of_a_request(receiver: Receiver) -> None:
    held = threading.Event()
    receiver.faults = lambda _: Fault(hold=held)
    try:
        with pytest.raises(PenstockError, match=r"no answer within 0.1 s"):
            deliver(receiver, message(), **{"request-timeout": "100ms", "retry-time": "100ms"})
    finally:
        held.set()


def test_a_refused_message_waits_in_the_dead_letters(receiver: Receiver, tmp_path: Path) -> None:
    receiver.faults = lambda told: Fault(422, body=b"id 2 is bad") if told["sequence"].endswith("2") else None
    deliver(receiver, message(1), message(2), message(3), folder=tmp_path / "letters")
    assert [row["id"] for row in receiver.state("shop.orders")] == [1, 3]
    uri, settings = read_settings(receiver.uri, {"secret": SECRET, "dead-letter": (tmp_path / "letters").as_uri()})
    box = HttpLetterBox(address_of(uri), settings, "f")
    assert list(box.names()) == ["00000002_7-0_0"]
    shown = box.show("00000002_7-0_0")
    assert (shown["status"], shown["reason"], shown["body"].encode()) == (422, "id 2 is bad", message(2).body)
    assert SECRET not in str(shown)
    with pytest.raises(PenstockError, match=r"SINK_REFUSED.*422"):
        box.retry("00000002_7-0_0")
    assert list(box.names()) == ["00000002_7-0_0"]
    receiver.faults = lambda _: None
    box.retry("00000002_7-0_0")
    assert list(box.names()) == []
    assert [row["id"] for row in receiver.state("shop.orders")] == [1, 2, 3]
    assert receiver.requests[-1].headers["idempotency-key"] == message(2).id
    assert receiver.requests[-1].headers["penstock-redelivery"] == "1"
    for name in ("00000002_7-0_0", "../../etc/passwd", ""):
        with pytest.raises(PenstockError, match=r"DEAD_LETTER_UNKNOWN"):
            box.show(name)


@pytest.mark.parametrize(
    ("status", "code"), [(408, "SINK_UNAVAILABLE"), (503, "SINK_UNAVAILABLE"), (401, "SINK_UNWRITABLE"), (302, "SINK_UNWRITABLE")]
)
def test_a_letter_that_is_not_taken_is_judged_as_any_other_message(receiver: Receiver, tmp_path: Path, status: int, code: str) -> None:
    receiver.faults = lambda _: Fault(422)
    deliver(receiver, message(1), folder=tmp_path)
    receiver.faults = lambda _: Fault(status)
    uri, settings = read_settings(receiver.uri, {"secret": SECRET, "dead-letter": tmp_path.as_uri()})
    box = HttpLetterBox(address_of(uri), settings, "f")
    with pytest.raises(PenstockError, match=rf"{code}.*answered {status} to dead letter 00000001_7-0_0\Z"):
        box.retry("00000001_7-0_0")
    assert list(box.names()) == ["00000001_7-0_0"]


def test_letters_of_a_lane_are_retried_in_their_order(receiver: Receiver, tmp_path: Path) -> None:
    receiver.faults = lambda _: Fault(422)
    deliver(receiver, message(1), message(2), folder=tmp_path)
    receiver.faults = lambda _: None
    uri, settings = read_settings(receiver.uri, {"secret": SECRET, "dead-letter": tmp_path.as_uri()})
    box = HttpLetterBox(address_of(uri), settings, "f")
    with pytest.raises(PenstockError, match=r"DEAD_LETTER_ORDER.*00000001_7-0_0"):
        box.retry("00000002_7-0_0")
    assert receiver.rows == {}
    for name in box.names():
        box.retry(name)
    assert [row["id"] for row in receiver.state("shop.orders")] == [1, 2]


def test_not_everything_is_left_aside(receiver: Receiver, tmp_path: Path) -> None:
    receiver.faults = lambda _: Fault(400)
    with pytest.raises(PenstockError, match=r"SINK_REFUSED.*more than 2"):
        deliver(receiver, message(1), message(2), message(3), folder=tmp_path, **{"dead-letters-max": "2", "refusals-max": "1"})
    assert len(list(tmp_path.rglob("*.json"))) == 2


def test_signatures_are_checked_and_keys_may_be_base64(receiver: Receiver) -> None:
    receiver.secret = b"\x01\x02\x03"
    deliver(receiver, checkpoint_message(read_settings("http+json://h/", {})[1], "f", 9, {}), secret="whsec_AQID")
    assert receiver.checkpoint_ts == 9
    with pytest.raises(PenstockError, match=r"SINK_UNWRITABLE.*401"):
        deliver(receiver, message(), secret="another")
