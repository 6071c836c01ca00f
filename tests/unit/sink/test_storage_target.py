import os
import random
import threading
from pathlib import Path

import pytest

from penstock.model.errors import PenstockError
from penstock.sink.storage import target as target_module
from penstock.sink.storage.target import ObjectTarget, RetrySettings, TargetAddress, _open_store
from penstock.testing.clock import SimulatedClock


@pytest.fixture
def target(tmp_path: Path) -> ObjectTarget:
    return ObjectTarget.open(f"file://{tmp_path}/new/target")


def test_objects_come_and_go(target: ObjectTarget) -> None:
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
    assert target.children() == ["a", "c"]
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


def test_large_objects_are_created_in_parts(target: ObjectTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "MULTIPART_BYTES", 1 << 20)
    content = random.Random(1).randbytes(12 << 20)
    assert target.put_new("big", content)
    assert not target.put_new("big", content)
    with pytest.raises(PenstockError, match="SINK_CONFLICT"):
        target.put_new("big", content[:-1] + b"!")
    assert target.get("big") == content


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
