"""Segments of the spool: their bytes, damage, and what a killed process leaves."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.model.errors import PenstockError
from penstock.sink.storage.spool.segment import DIRECTORY_PREFIX, FILE_HEADER, SegmentPlace, SpoolSegments, wipe_left_behind


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
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=240)
    assert ended.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    living = SpoolSegments(tmp_path)
    assert not left.exists()
    place = living.append(memoryview(b"alive"))
    assert wipe_left_behind(tmp_path) == 0
    assert _read(living, place) == b"alive"
    living.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_nothing_is_written_where_others_can_replace_it(tmp_path: Path, mode: int) -> None:
    """Another user made the directory first, and linked its content elsewhere later."""
    place = tmp_path / "spool"
    place.mkdir()
    left = place / f"{DIRECTORY_PREFIX}of-another"
    left.mkdir()
    (left / "lock").touch()
    place.chmod(mode)
    segments = SpoolSegments(place)
    with pytest.raises(PermissionError, match="spool-dir"):
        segments.append(memoryview(b"row"))
    assert list(place.iterdir()) == [left]
    place.chmod(0o1777)
    segments.append(memoryview(b"row"))
    segments.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a link for somebody else")
def test_a_link_of_another_user_is_no_place_of_ours(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "spool").symlink_to(tmp_path / "elsewhere")
    os.lchown(tmp_path / "spool", 65_534, 65_534)
    with pytest.raises(PermissionError):
        SpoolSegments(tmp_path / "spool").append(memoryview(b"row"))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    os.lchown(tmp_path / "spool", 0, 0)
    segments = SpoolSegments(tmp_path / "spool")
    segments.append(memoryview(b"row"))
    segments.close()


def test_the_place_is_made_for_this_user_alone(tmp_path: Path) -> None:
    segments = SpoolSegments(tmp_path / "spool")
    segments.append(memoryview(b"row"))
    assert {f"{stat.S_IMODE(path.stat().st_mode):o}" for path in (tmp_path / "spool", *(tmp_path / "spool").iterdir())} == {"700"}
    segments.close()
