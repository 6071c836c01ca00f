"""Large contents in pieces."""

import os
from pathlib import Path

from penstock.files.large_writes import WRITE_BYTES, pieces, write_at

CONTENT = os.urandom(2 * WRITE_BYTES + 17)


def test_pieces_are_the_content_without_a_copy() -> None:
    found = list(pieces(CONTENT))
    assert [len(piece) for piece in found] == [WRITE_BYTES, WRITE_BYTES, 17]
    assert b"".join(found) == CONTENT
    assert all(piece.obj is CONTENT for piece in found)
    assert list(pieces(b"")) == []


def test_a_content_stands_where_it_was_written(tmp_path: Path) -> None:
    file = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    try:
        assert write_at(file, CONTENT, 3) == 3 + len(CONTENT)
        assert write_at(file, b"", 1) == 1
    finally:
        os.close(file)
    assert (tmp_path / "f").read_bytes() == bytes(3) + CONTENT
