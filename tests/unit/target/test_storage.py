import errno
import itertools
import os
import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from obstore.exceptions import PermissionDeniedError

from penstock.model.errors import ErrorKind, PenstockError
from penstock.target import storage as target_module
from penstock.target.storage import ObjectTarget, RetrySettings, TargetAddress, _classify, _open_store
from testing.twins.clock import SimulatedClock


@pytest.fixture
def target(tmp_path: Path) -> ObjectTarget:
    return ObjectTarget.open(f"file://{tmp_path}/new/target")


def test_objects_come_and_go(target: ObjectTarget) -> None:
    assert target.is_empty()
    assert target.put_new("a/b", b"one")
    assert not target.put_new("a/b", memoryview(b"one"))
    with pytest.raises(PenstockError, match=r"SINK_CONFLICT.*a/b"):
        target.put_new("a/b", b"two")
    assert target.get("a/b") == b"one"
    target.put("a/b", b"three")
    target.put("c", b"")
    assert target.get("a/b") == b"three"
    assert sorted(target.paths()) == ["a/b", "c"]
    assert list(target.paths("a")) == ["a/b"]
    assert not target.is_empty()
    assert target.exists("a/b")
    assert target.find("nope") is None
    with pytest.raises(FileNotFoundError):
        target.get("nope")
    target.delete("a/b")
    target.delete("a/b")
    assert not target.exists("a/b")


def test_no_temporary_files_are_listed(target: ObjectTarget, tmp_path: Path) -> None:
    target.put_new("x/y", b"1" * 100_000)
    names = [name for _, _, files in os.walk(tmp_path) for name in files]
    assert names == ["y"]


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_large_objects_are_created_once(target: ObjectTarget, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target if kind == "file" else ObjectTarget.open("memory://large")
    monkeypatch.setattr(target_module, "MULTIPART_BYTES", 1 << 20)
    content = random.Random(1).randbytes((12 << 20) + 77)
    assert target.put_new("big", content)
    assert not target.put_new("big", memoryview(content))
    for other in (content[:-1] + b"!", content[:-1], b"small"):
        with pytest.raises(PenstockError, match="SINK_CONFLICT"):
            target.put_new("big", other)
    assert target.get("big") == content


class InterruptedUploadError(Exception):
    """Ends a writer before one of its requests."""


def _writer(name: str, before: dict[int, Callable[[], None]]) -> ObjectTarget:
    """Return a target on a memory store that others share; something happens before its numbered writes."""
    opened, calls = ObjectTarget.open(f"memory://{name}"), itertools.count(1)

    def guard() -> None:
        before.get(next(calls), lambda: None)()

    opened.guard = guard
    return opened


@pytest.mark.parametrize("theirs", [2 << 20, 10_000])
@pytest.mark.parametrize("moment", [1, 2])
def test_two_writers_of_a_large_object_never_leave_what_the_other_did_not_see(
    monkeypatch: pytest.MonkeyPatch, moment: int, theirs: int
) -> None:
    """Another writer comes before the name is reserved, or while the parts are under way; its bytes are large or small, and different."""
    monkeypatch.setattr(target_module, "MULTIPART_BYTES", 1 << 20)
    name, ours = f"race-{moment}-{theirs}", random.Random(1).randbytes(3 << 20)
    other_bytes, other, outcomes = random.Random(2).randbytes(theirs), ObjectTarget.open(f"memory://{name}"), []

    def come_between() -> None:
        try:
            outcomes.append(other.put_new("x", other_bytes))
        except PenstockError as error:
            outcomes.append(error.code)

    try:
        outcomes.append(_writer(name, {moment: come_between}).put_new("x", ours))
    except PenstockError as error:
        outcomes.append(error.code)
    assert outcomes == ([True, "SINK_CONFLICT"] if moment == 1 else ["SINK_CONFLICT", True])
    assert other.get("x") == (other_bytes if moment == 1 else ours)


def test_a_large_upload_that_was_interrupted_is_finished_by_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "MULTIPART_BYTES", 1 << 20)
    content = random.Random(1).randbytes(3 << 20)

    def die() -> None:
        raise InterruptedUploadError

    with pytest.raises(InterruptedUploadError):
        _writer("interrupted", {2: die}).put_new("x", content)
    later = ObjectTarget.open("memory://interrupted")
    assert later.get("x") != content
    with pytest.raises(PenstockError, match="SINK_CONFLICT"):
        later.put_new("x", content[1:])
    assert later.put_new("x", content)
    assert later.get("x") == content


@pytest.mark.parametrize("uri", ["file:///proc/nope/x", "file:///dev/null/x"])
def test_a_directory_that_cannot_be_made(uri: str) -> None:
    with pytest.raises(PenstockError, match="SINK_UNWRITABLE"):
        ObjectTarget.open(uri)


def test_a_target_that_does_not_answer_is_tried_a_bounded_number_of_times() -> None:
    waited: list[float] = []

    class Pauses(SimulatedClock):
        def wait(self, event: threading.Event, timeout_s: float) -> bool:
            waited.append(timeout_s)
            return False

    uri = "s3://bucket/p?endpoint=http://127.0.0.1:9&access-key-id=a&secret-access-key=hunter2&region=x"
    retry = RetrySettings(attempts_max=3, pause_s_min=1.0, pause_s_max=1.5)
    dead = ObjectTarget(_open_store(uri), "dead", retry, Pauses(), random.Random(7))
    with pytest.raises(PenstockError, match="SINK_UNAVAILABLE") as caught:
        dead.put("x", b"1")
    assert len(waited) == 2
    assert 0.5 <= waited[0] <= 1.0
    assert 0.75 <= waited[1] <= 1.5
    assert "hunter2" not in str(caught.value)


def test_memory_targets_of_one_name_are_one() -> None:
    TargetAddress("memory://one/x").open().put("k", b"v")
    assert TargetAddress("memory://one/x").open().get("k") == b"v"
    assert TargetAddress("memory://one/y").open().find("k") is None


def test_a_target_that_never_answers_is_given_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"s3://bucket/p?endpoint=http://127.0.0.1:{silent.getsockname()[1]}&region=x&access-key-id=a&secret-access-key=b"
        target = TargetAddress(uri, RetrySettings(request_s_max=0.2, total_s_max=0.2)).open()
        # Without the bounds this takes 300 seconds, three times for each of five tries.
        with pytest.raises(PenstockError, match=r"^\[SINK_UNAVAILABLE\]"):
            target.find("x")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "SINK_FULL"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), "SINK_FULL"),
        (PermissionDeniedError("403: <Error><Code>QuotaExceeded</Code></Error>"), "SINK_FULL"),
        (PermissionDeniedError("403: <Error><Code>AccessDenied</Code></Error>"), "SINK_UNWRITABLE"),
        (OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)), "SINK_UNAVAILABLE"),
    ],
)
def test_a_target_without_room_is_told_from_one_that_refuses(error: Exception, code: str) -> None:
    failure = _classify(error, "cannot create x")
    assert failure.code == code
    assert (failure.kind is ErrorKind.BLOCKED) == (code == "SINK_UNWRITABLE")


def test_a_request_that_hangs_is_not_waited_for_as_a_large_one_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"s3://bucket/p?endpoint=http://127.0.0.1:{silent.getsockname()[1]}&region=x&access-key-id=a&secret-access-key=b"
        # A large file may take minutes, and so would each of these.
        target = TargetAddress(uri, RetrySettings(small_s_max=0.2)).open()
        calls: list[Callable[[], object]] = [lambda: target.find("x"), lambda: target.put_new("x", b"1"), lambda: list(target.paths())]
        for call in calls:
            with pytest.raises(PenstockError, match="SINK_UNAVAILABLE"):
                call()
