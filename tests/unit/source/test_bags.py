"""Bags of rows whose contents are hard to tell apart, and transactions in great number, against a count of copies."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from penstock.source.bags import BagSide, fold_bag


def content(*tails: int) -> list[bytes]:
    """Contents that have their first 8 bytes in common: what a quick order looks at does not tell them apart."""
    return [bytes(8) + tail.to_bytes(8, "big") for tail in tails]


def left(side: BagSide, ts: list[int], contents: list[bytes]) -> Counter[tuple[int, bytes]]:
    """Return what a side holds, after a look at its keys: in order, and each of its row."""
    keys = side.keys.to_pylist()
    rows = [(ts[row], contents[row]) for row in side.rows.tolist()]
    assert [(at, key) for (at, _), key in zip(rows, keys, strict=True)] == sorted(
        (at, key) for (at, _), key in zip(rows, keys, strict=True)
    )
    assert [key[:16] for key in keys] == [text for _, text in rows]
    assert [int.from_bytes(key[16:24], "big") for key in keys] == [at for at, _ in rows]
    assert len(set(keys)) == len(keys)
    return Counter(rows)


@pytest.mark.parametrize("moments", [1, 3, 1 << 17])
def test_what_is_left_is_the_difference_of_the_counts(moments: int) -> None:
    rng = np.random.default_rng(7)
    gone_ts = np.sort(rng.integers(1, moments + 1, 400)).tolist()
    came_ts = np.sort(np.append(rng.integers(1, moments + 1, 500), np.arange(1, moments + 1))).tolist()
    gone, came = content(*rng.integers(0, 9, len(gone_ts)).tolist()), content(*rng.integers(0, 9, len(came_ts)).tolist())
    sides = fold_bag(np.array(gone_ts, np.uint64), pa.array(gone), np.array(came_ts, np.uint64), pa.array(came))
    before, after = Counter(zip(gone_ts, gone, strict=True)), Counter(zip(came_ts, came, strict=True))
    assert left(sides[0], gone_ts, gone) == before - after
    assert left(sides[1], came_ts, came) == after - before


def test_contents_apart_in_their_last_bytes_are_in_order() -> None:
    contents = [bytes(6) + bytes([0, tail]) + bytes(8) for tail in (9, 3, 7, 3, 1)]
    _, came = fold_bag(np.empty(0, np.uint64), pa.array([], pa.binary()), np.full(5, 8, np.uint64), pa.array(contents))
    assert came.rows.tolist() == [4, 1, 3, 2, 0]
