"""Blocks of far objects: reads give the object's bytes, what is kept is bounded, and what is kept is not fetched again."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from penstock.store.objects.block_cache import BlockCache

SIZE = 1_000


class Far:
    def __init__(self, seed: int) -> None:
        self.payload = random.Random(seed).randbytes(SIZE)
        self.fetched: list[tuple[int, int]] = []

    def fetch(self, start: int, length: int) -> pa.Buffer:
        self.fetched.append((start, length))
        assert start + length <= SIZE
        return pa.py_buffer(self.payload[start : start + length])


@pytest.mark.parametrize("bytes_max", [64, 256, 4_096])
def test_reads_give_the_bytes_of_the_object_within_the_bound(bytes_max: int) -> None:
    cache = BlockCache(bytes_max, block_bytes=32)
    objects = {f"object-{n}": Far(n) for n in range(3)}
    rng = random.Random(7)
    for _ in range(2_000):
        name, start = rng.choice(sorted(objects)), rng.randrange(SIZE)
        length = rng.randrange(1, SIZE - start + 1) if rng.random() < 0.1 else rng.randrange(1, min(60, SIZE - start) + 1)
        far = objects[name]
        assert cache.read(("uri", name), start, length, SIZE, far.fetch).to_pybytes() == far.payload[start : start + length]
        assert cache.nbytes <= bytes_max


def test_what_is_kept_is_not_fetched_again_and_the_least_used_goes_first() -> None:
    cache, far = BlockCache(96, block_bytes=32), Far(1)
    for start in (0, 32, 64, 5, 96):
        cache.read(("uri", "a"), start, 10, SIZE, far.fetch)
    assert far.fetched == [(0, 32), (32, 32), (64, 32), (96, 32)]
    cache.read(("uri", "a"), 0, 32, SIZE, far.fetch)
    assert len(far.fetched) == 4
    cache.read(("uri", "a"), 40, 1, SIZE, far.fetch)
    assert far.fetched[4:] == [(32, 32)]
    cache.read(("uri", "a"), 990, 10, SIZE, far.fetch)
    assert far.fetched[5:] == [(960, 40)]


def test_too_few_bytes_are_an_error_and_are_not_kept() -> None:
    cache, far = BlockCache(1_024, block_bytes=32), Far(1)
    with pytest.raises(OSError, match="too few"):
        cache.read(("uri", "a"), 0, 10, SIZE, lambda start, length: far.fetch(start, length - 1))
    assert cache.read(("uri", "a"), 0, 10, SIZE, far.fetch).to_pybytes() == far.payload[:10]
