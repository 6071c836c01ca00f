"""Segments of the spool: their bytes, damage, and what a killed process leaves."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.model.errors import PenstockError
from penstock.sink.storage.spool.segment import FILE_HEADER, SegmentPlace, SpoolSegments, wipe_left_behind


def _read(segments: SpoolSegments, place: SegmentPlace) -> bytes:
    space = bytearray(place.nbytes)
    segments.read_into(place, memoryview(space))
    return bytes(space)


def test_damage_on_disk_is_found(tmp_path: Path) -> None:
    segments = SpoolSegments(tmp_path)
    place = segments.append(memoryview(b"payload"))
    assert _read(segments, place) == b"payload"
    (file,) = tmp_path.glob("*/*.segment")
    whole = file.read_bytes()
    for at in range(FILE_HEADER.size, len(whole)):
        with file.open("r+b") as opened:
            opened.seek(at)
            opened.write(bytes([whole[at] ^ 1]))
        with pytest.raises(PenstockError, match="OBJECT_CORRUPT"):
            _read(segments, place)
        file.write_bytes(whole)
    with file.open("r+b") as opened:
        opened.truncate(len(whole) - 1)
    with pytest.raises(PenstockError, match="OBJECT_CORRUPT"):
        _read(segments, place)
    segments.close()


def test_a_segment_has_its_magic(tmp_path: Path) -> None:
    segments = SpoolSegments(tmp_path)
    segments.append(memoryview(b"payload"))
    (file,) = tmp_path.glob("*/*.segment")
    golden = b"PENSPOOL" + bytes.fromhex("01000000 00000000 0700000000000000 7b8d2d5bf061fe32") + b"payload"
    assert file.read_bytes() == golden
    segments.close()


def test_what_a_killed_process_left_is_wiped_at_start_and_what_lives_is_not(tmp_path: Path) -> None:
    script = (
        "import sys, os, signal\nfrom pathlib import Path\nfrom penstock.sink.storage.spool.segment import SpoolSegments\n"
        "SpoolSegments(Path(sys.argv[1])).append(memoryview(b'left behind'))\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    living = SpoolSegments(tmp_path)
    assert not left.exists()
    place = living.append(memoryview(b"alive"))
    assert wipe_left_behind(tmp_path) == 0
    assert _read(living, place) == b"alive"
    living.close()
    assert list(tmp_path.iterdir()) == []
