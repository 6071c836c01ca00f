from __future__ import annotations

import pytest

from penstock.format.layout.checksum_record import FileChecksum, checksum_of, parse_record, parse_record_path, record_path, render_record
from penstock.model.errors import PenstockError

FILES = [FileChecksum("s/t/1/CDC000002.csv", 3, checksum_of(b"abc")), FileChecksum('s/a "\n/1/CDC000001.csv', 0, checksum_of(b""))]
# The format on disk, and the values of its hash: they never change.
WRITTEN = (
    b"penstock-checksums 1 BODY\n"
    b'["s/a \\"\\n/1/CDC000001.csv",0,"99aa06d3014798d86001c324468d497f"]\n'
    b'["s/t/1/CDC000002.csv",3,"06b05ab6733a618578af5f94892f3950"]\n'
)


def test_what_is_written_never_changes() -> None:
    content = render_record(FILES)
    head, _, body = content.partition(b"\n")
    assert content == WRITTEN.replace(b"BODY", checksum_of(body).encode())
    assert head == b"penstock-checksums 1 0f0e0a1cfb28efd74b392752e759b1bf"
    assert parse_record(content, "x") == sorted(FILES)
    assert render_record(reversed(FILES)) == content


def test_paths() -> None:
    assert record_path(470498853337432064) == ".penstock/checksums/00470498853337432064"
    assert parse_record_path(record_path(7)) == 7
    for path in (".penstock/checksums/7", ".penstock/checksums/00000000000000000007.x", "x/00000000000000000007", ".penstock/feed.json"):
        assert parse_record_path(path) is None


@pytest.mark.parametrize("at", [0, 21, 60, -2])
def test_a_damaged_record_is_told(at: int) -> None:
    content = bytearray(render_record(FILES))
    content[at] ^= 1
    with pytest.raises(PenstockError, match="FILE_MALFORMED"):
        parse_record(bytes(content), "x")
