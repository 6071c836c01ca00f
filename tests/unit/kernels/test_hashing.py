"""Hashes that are kept in stores or decide an order have the values that they always had."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.hashing import FNV_START, HASH128_BYTES, cell_hashes, content_hashes, fold_hashes, hash64

TEXTS = [b"", b"a", b"abcdefgh", b"abcdefghi", bytes(range(256))]
DATA = np.frombuffer(b"".join(TEXTS), np.uint8)
OFFSETS = np.cumsum([0, *map(len, TEXTS)]).astype(np.int64)


def rows_of(out: np.ndarray) -> list[str]:
    return [row.tobytes().hex() for row in out.reshape(-1, HASH128_BYTES)]


def test_content_hashes_are_those_of_stored_keys() -> None:
    out = np.zeros(HASH128_BYTES * len(TEXTS), np.uint8)
    content_hashes(DATA, OFFSETS, out)
    assert rows_of(out) == [
        "cbf29ce4842223259ae16a3b2f90404f",
        "af63dc4c8601ec8cd4896b23b5566917",
        "25da8c1836a8d66d79e1ecf5c773be2f",
        "fb321124e0e3a8ccdc88d8af6cc1891c",
        "4242dc5249c33625faeea3c21a186f02",
    ]


def test_cell_hashes_are_those_of_stored_keys() -> None:
    starts = np.array([[0, 0, 1, 9, 9], [0, 1, 0, 0, 0]], np.int64)
    lengths = np.array([[-1, 1, 8, 9, 255], [-2, 0, 3, -1, 9]], np.int32)
    out = np.zeros(HASH128_BYTES * len(TEXTS), np.uint8)
    cell_hashes(DATA, starts, lengths, out)
    assert rows_of(out) == [
        "25abcb5c468f30995ef5dac99c2a3cd1",
        "e00d44f5a34e353f6d52f3448470b9e0",
        "8fff53d2e50e071bfdb05d538ce6ea1c",
        "0cf7ffd285d476f44cecf2b9cc1eec0a",
        "bf3c1608e4c82ca72cbbddb330054e02",
    ]


def test_folded_hashes_are_those_that_order_a_difference() -> None:
    total = np.full(len(TEXTS), FNV_START, np.uint64)
    fold_hashes(OFFSETS, DATA, total)
    fold_hashes(OFFSETS, DATA, total)
    assert total.tolist() == [0xA99C907B6F64763, 0xD2A97181928FA505, 0x7E38E98612A80BFB, 0x4E9F00343BC10D65, 0x91591DF58AD5F863]


def hashed(text: bytes, seed: int, lead: int) -> int:
    held = np.frombuffer(b"?" * lead + text + b"?" * 8, np.uint8)
    return int(hash64(held.ctypes.data + lead, len(text), np.uint64(seed)))


@given(st.binary(max_size=40), st.binary(max_size=40), st.integers(0, 2**63), st.integers(0, 2**63), st.integers(0, 7))
def test_equal_bytes_and_seeds_alone_have_equal_hashes(one: bytes, other: bytes, seed: int, more: int, lead: int) -> None:
    assert hashed(one, seed, lead) == hashed(one, seed, 0)
    assert (hashed(one, seed, 0) == hashed(other, more, lead)) == ((one, seed) == (other, more))
