"""Rows that a query answers, in packets of any size, against the fields that they were written from."""

import numpy as np
import pytest

from penstock.model.errors import PenstockError
from penstock.source.mysql.snapshot.text_rows import split_rows

Field = bytes | None


def written(fields: list[Field]) -> bytes:
    """Return a row as the protocol writes it."""
    parts = []
    for field in fields:
        if field is None:
            parts.append(b"\xfb")
        elif len(field) < 251:
            parts.append(bytes([len(field)]) + field)
        else:
            parts.append(b"\xfc" + len(field).to_bytes(2, "little") + field)
    return b"".join(parts)


def split(rows: list[bytes], columns: int) -> list[list[Field]]:
    starts = np.cumsum([0, *map(len, rows)])[:-1].astype(np.int64)
    arrays = split_rows(np.frombuffer(b"".join(rows) or b"\0", np.uint8), starts, sum(map(len, rows)), columns)
    return [list(values) for values in zip(*(array.to_pylist() for array in arrays), strict=True)]


def test_fields_come_back() -> None:
    rows: list[list[Field]] = [[b"a", None, b""], [b"", b"x" * 300, b"\xff\x00"], [None, None, None]] * 5
    assert split([written(row) for row in rows], 3) == rows


@pytest.mark.parametrize("damaged", [b"\x05abc", b"\xff", b"\xfc\x01", b"\x01a\x01"])
def test_rows_that_do_not_have_their_fields_are_refused(damaged: bytes) -> None:
    with pytest.raises(PenstockError, match="row 1 of 2") as caught:
        split([written([b"a"]), damaged], 1)
    assert caught.value.code == "DECODE_FAILED"
