"""Hashes that are kept in stores or decide an order have the values that they always had."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.hashing import FNV_START, HASH128_BYTES, cell_hashes, fold_hashes, hash64, hash_numbers, hash_texts

TEXTS = [b"", b"a", b"abcdefgh", b"abcdefghi", bytes(range(256))]
DATA = np.frombuffer(b"".join(TEXTS), np.uint8)
OFFSETS = np.cumsum([0, *map(len, TEXTS)]).astype(np.int64)


def rows_of(out: np.ndarray) -> list[str]:
    return [row.tobytes().hex() for row in out.reshape(-1, HASH128_BYTES)]


def mixed(value: int) -> int:
    """The finalizer of MurmurHash3, as its paper has it."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        value = ((value ^ (value >> 33)) * factor) % 2**64
    return value ^ (value >> 33)


def test_columns_are_folded_into_two_hashes_a_row() -> None:
    null = 0xA0761D6478BD642F
    nulls = np.array([False, True, False, False, False])
    numbers = np.array([5, 5, 2**64 - 1, 0, 7], np.uint64)
    one, two = np.full(5, 11, np.uint64), np.full(5, 13, np.uint64)
    hash_numbers(numbers, nulls, one, two)
    hash_texts(DATA, OFFSETS, nulls[::-1].copy(), one, two)
    for row, (number, text) in enumerate(zip(numbers.tolist(), TEXTS, strict=True)):
        first, second = (mixed(11 + null), mixed(13 ^ null)) if row == 1 else (mixed(11 ^ number), mixed((13 + number) % 2**64))
        if row == 3:
            first, second = mixed((first + null) % 2**64), mixed(second ^ null)
        else:
            for word in (len(text), *(int.from_bytes(text[at : at + 8], "little") for at in range(0, len(text), 8))):
                first, second = mixed(first ^ word), mixed((second + word) % 2**64)
        assert (int(one[row]), int(two[row])) == (first, second)


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
