"""The spool: tiers, spilling, segments, and disks that fail."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.model.errors import PenstockError
from penstock.sink.contract import DispatcherId
from penstock.sink.failure_latch import FailureLatch
from penstock.sink.storage.metrics import SinkCounters
from penstock.sink.storage.spool.file_buffer import BufferPool, FileBuffer
from penstock.sink.storage.spool.segment import SpoolDisk, SpoolSegments
from penstock.sink.storage.spool.spool import DataItem, Spool, SpoolSettings, Tier

D = DispatcherId(1)
KIB = 1 << 10


class Rig:
    """A spool of 100 KiB with a memory tier of 20 KiB, and its parts."""

    def __init__(self, folder: Path, disk: SpoolDisk | None = None, quota: int = 100 * KIB) -> None:
        self.latch = FailureLatch()
        self.counters = SinkCounters()
        self.segments = SpoolSegments(folder, segment_bytes=8 * KIB, disk=disk)
        self.spool = Spool(SpoolSettings(quota), self.latch, BufferPool(64 * KIB), self.counters, self.segments)
        self.changed = self.latch.condition()

    def put(self, byte: int, size: int) -> DataItem:
        item = DataItem(D, content(byte, size))
        self.spool.put(item)
        return item

    def close(self) -> None:
        self.latch.trip(PenstockError("CANCELLED", "the test ends"))
        self.spool.close()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        pause = threading.Event()
        for _ in range(1000):
            if condition():
                return
            pause.wait(0.01)
        raise TimeoutError("the condition did not come")

    def bytes_of(self, item: DataItem) -> bytes:
        found = bytes(self.spool.assemble([item]).content())
        self.spool.release([item])
        return found


def content(byte: int, size: int) -> FileBuffer:
    buffer = FileBuffer(size)
    buffer.write(bytes([byte]) * size)
    return buffer


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    made = Rig(tmp_path)
    yield made  # type: ignore[misc]
    made.close()


def test_what_fits_in_memory_stays_there(rig: Rig, tmp_path: Path) -> None:
    items = [rig.put(n, 4 * KIB) for n in range(4)]
    assert (rig.spool.level.nbytes, rig.spool.level.memory_bytes, rig.spool.level.items) == (16 * KIB, 16 * KIB, 4)
    assert [rig.bytes_of(item) for item in items] == [bytes([n]) * 4 * KIB for n in range(4)]
    assert (rig.spool.level.nbytes, rig.spool.level.items) == (0, 0)
    assert list(tmp_path.iterdir()) == []


def test_items_spill_and_come_back_as_they_were(rig: Rig, tmp_path: Path) -> None:
    items = [rig.put(n, 3 * KIB + n) for n in range(20)]
    rig.wait_until(lambda: rig.spool.level.memory_bytes <= 16 * KIB)
    assert rig.spool.level.nbytes == sum(item.nbytes for item in items)
    on_disk = [item for item in items if item.tier is Tier.DISK]
    assert len(on_disk) >= 10
    assert rig.counters.spilled_bytes == sum(item.nbytes for item in on_disk)
    assert [rig.bytes_of(item) for item in items] == [bytes([n]) * (3 * KIB + n) for n in range(20)]
    assert (rig.spool.level.nbytes, rig.spool.level.memory_bytes, rig.spool.level.items) == (0, 0, 0)
    # All but the segment that is still written to are gone with their last entry.
    assert rig.segments.files <= 1
    (directory,) = tmp_path.iterdir()
    assert len(list(directory.glob("*.segment"))) == rig.segments.files
    assert rig.counters.report().peaks["spool_items"] == 20


def test_the_spool_is_gone_when_it_is_closed(tmp_path: Path) -> None:
    made = Rig(tmp_path)
    for n in range(20):
        made.put(n, 3 * KIB)
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_an_item_larger_than_everything_passes_alone(rig: Rig) -> None:
    small = rig.put(1, KIB)
    large = DataItem(D, content(2, 200 * KIB))
    putter = threading.Thread(target=rig.spool.put, args=(large,))
    putter.start()
    # It makes room for what comes by going to disk itself.
    putter.join(120)
    assert not putter.is_alive()
    assert large.tier is Tier.DISK
    assert rig.bytes_of(large) == b"\2" * 200 * KIB
    assert rig.bytes_of(small) == b"\1" * KIB


def test_an_item_grows_until_it_is_spilled_or_written(rig: Rig) -> None:
    item = rig.put(1, KIB)
    for n in range(2, 5):
        buffer = rig.spool.claim(item)
        assert buffer is not None
        buffer.write(bytes([n]) * KIB)
        rig.spool.put(item)
    assert (rig.spool.level.nbytes, rig.spool.level.items, item.nbytes) == (4 * KIB, 1, 4 * KIB)
    others = [rig.put(9, 4 * KIB) for _ in range(20)]
    rig.wait_until(lambda: item.tier is Tier.DISK or rig.spool.level.memory_bytes <= 16 * KIB)
    if item.tier is Tier.DISK:
        assert rig.spool.claim(item) is None
    whole = rig.spool.assemble([item, *others])
    assert bytes(whole.content()) == b"".join(bytes([n]) * KIB for n in range(1, 5)) + b"\x09" * 80 * KIB
    assert rig.spool.claim(item) is None
    rig.spool.release([item, *others])
    assert (rig.spool.level.nbytes, rig.spool.level.memory_bytes, rig.spool.level.items) == (0, 0, 0)


def test_what_an_encoder_claimed_is_not_spilled(rig: Rig) -> None:
    item = rig.put(1, 2 * KIB)
    buffer = rig.spool.claim(item)
    assert buffer is not None
    for n in range(10):
        rig.put(n, 8 * KIB)
    rig.wait_until(lambda: rig.spool.level.memory_bytes <= 16 * KIB)
    assert item.tier is Tier.MEMORY
    buffer.write(b"x")
    rig.spool.put(item)
    assert rig.bytes_of(item) == b"\1" * 2 * KIB + b"x"


class BrokenDisk(SpoolDisk):
    """Fails a call with an error number after some that went well."""

    def __init__(self, operation: str, number: int, after: int = 0) -> None:
        self._operation = operation
        self._number = number
        self._left = after

    def _step(self, operation: str) -> None:
        if operation == self._operation:
            self._left -= 1
            if self._left < 0:
                raise OSError(self._number, os.strerror(self._number))

    def create(self, path: Path) -> int:
        self._step("create")
        return super().create(path)

    def write(self, file: int, data: bytes | memoryview, at: int) -> None:
        self._step("write")
        super().write(file, data, at)

    def read_into(self, file: int, space: memoryview, at: int) -> int:
        self._step("read")
        return super().read_into(file, space, at)


@pytest.mark.parametrize(
    ("operation", "number", "after"),
    [("create", errno.EACCES, 0), ("write", errno.ENOSPC, 0), ("write", errno.ENOSPC, 6), ("write", errno.EIO, 3)],
)
def test_a_full_or_failing_disk_is_an_error_and_no_hang(tmp_path: Path, operation: str, number: int, after: int) -> None:
    rig = Rig(tmp_path, BrokenDisk(operation, number, after))
    heard = threading.Event()
    rig.latch.listen(heard.set)

    def fill() -> None:
        for n in range(200):
            rig.put(n % 250, 3 * KIB)

    with pytest.raises(PenstockError, match=rf"SPOOL_FAILED.*{os.strerror(number)}"):
        fill()
    assert heard.is_set()
    rig.close()


def test_a_disk_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    rig = Rig(tmp_path, BrokenDisk("read", errno.EIO))
    items = [rig.put(n, 3 * KIB) for n in range(20)]
    rig.wait_until(lambda: any(item.tier is Tier.DISK for item in items))
    with pytest.raises(PenstockError, match=r"SPOOL_FAILED.*Input/output"):
        rig.bytes_of(next(item for item in items if item.tier is Tier.DISK))
    rig.close()
