"""The commit chain of single logs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.timestamp import compose_ts
from penstock.source.single_log import CommitChain


@given(st.integers(0, compose_ts(50)), st.lists(st.integers(0, 60), max_size=50))
def test_many_at_once_are_the_same_as_one_after_the_other(last_ts: int, times: list[int]) -> None:
    single, many = CommitChain(last_ts), CommitChain(last_ts)
    one_by_one = [single.next(ms) for ms in times]
    assert many.next_many(np.array(times, dtype=np.int64)).tolist() == one_by_one
    assert many.last_ts == single.last_ts


def test_ts_grow_and_follow_the_clock() -> None:
    chain = CommitChain(0)
    assert [chain.next(5), chain.next(5), chain.next(3), chain.next(9)] == [
        compose_ts(5),
        compose_ts(5) + 1,
        compose_ts(5) + 2,
        compose_ts(9),
    ]


def test_a_mark_raises_the_chain_and_never_lowers_it() -> None:
    chain = CommitChain(compose_ts(7))
    chain.raise_to(compose_ts(9))
    chain.raise_to(compose_ts(8))
    assert chain.next(1) == compose_ts(9) + 1
