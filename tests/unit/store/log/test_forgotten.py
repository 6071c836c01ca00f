"""What a write-ahead log has forgotten: it comes back from disk, and objects that do not reach so far are refused."""

from pathlib import Path

import pytest

from penstock.model.errors import PenstockError
from penstock.store.log.forgotten import FILE, Forgotten, note_forgotten, read_forgotten


def test_what_was_noted_is_read(tmp_path: Path) -> None:
    assert read_forgotten(tmp_path) == Forgotten()
    noted = Forgotten().with_segment(3, {1: 10, 2: 5}).with_segment(4, {1: 7, 9: 1})
    assert noted == Forgotten(5, {1: 10, 2: 5, 9: 1})
    note_forgotten(tmp_path, noted)
    assert read_forgotten(tmp_path) == noted
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0


def test_a_damaged_note_is_refused(tmp_path: Path) -> None:
    note_forgotten(tmp_path, Forgotten(5, {1: 10}))
    content = bytearray((tmp_path / FILE).read_bytes())
    content[-3] ^= 1
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(PenstockError) as caught:
        read_forgotten(tmp_path)
    assert caught.value.code == "WAL_CORRUPT"


@pytest.mark.parametrize("flushed", [{}, {1: 9}, {2: 10}])
def test_objects_must_reach_as_far_as_the_log_relied_on(flushed: dict[int, int]) -> None:
    with pytest.raises(PenstockError, match="span 1"):
        Forgotten(5, {1: 10}).check_objects(flushed)
    Forgotten(5, {1: 10}).check_objects({1: 10})


def test_no_segment_may_be_missing() -> None:
    Forgotten().check_segments(9)
    Forgotten(5).check_segments(5)
    with pytest.raises(PenstockError, match="segment 5"):
        Forgotten(5).check_segments(6)
