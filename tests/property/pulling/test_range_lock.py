"""The range lock partitions its span whatever happens, and its frontier is the minimum over all keys."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.puller.ranged.range_lock import PieceState, RangeLock, RangePiece

KEYS = [bytes([k]) for k in range(1, 16)]
bounds = st.integers(0, 17)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("lock"), bounds, bounds),
        st.tuples(st.just("unlock"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("raise"), st.integers(0, 99), st.integers(1, 40)),
    ),
    max_size=60,
)


def key_of(bound: int) -> bytes:
    return bytes([bound]) if bound <= 15 else b""


@settings(max_examples=300, deadline=None)
@given(steps)
def test_no_hole_no_overlap_and_the_minimum_of_all_keys(script: list[tuple[str, int, int]]) -> None:
    lock = RangeLock(b"\x01", b"", 5)
    resolved = dict.fromkeys(KEYS, 5)  # the oracle: per key, from which ts it would be pulled again
    owner: dict[bytes, RangePiece | None] = dict.fromkeys(KEYS)
    for what, a, b in script:
        held = [p for p in lock.pieces() if p.state is PieceState.LOCKED]
        if what == "lock":
            start, end = key_of(min(a, 15)), key_of(b)
            inside = [k for k in KEYS if k >= start and (not end or k < end)]
            piece = lock.lock(start, end, 1)
            if inside and all(owner[k] is None for k in inside):
                assert piece is not None
                assert piece.resolved_ts == min(resolved[k] for k in inside)
                for key in inside:
                    owner[key], resolved[key] = piece, piece.resolved_ts
            else:
                assert piece is None
        elif held and what == "unlock":
            piece = held[a % len(held)]
            assert lock.unlock(piece) == piece.resolved_ts
            owner = {k: None if p is piece else p for k, p in owner.items()}
        elif held:
            piece = held[a % len(held)]
            piece.raise_resolved(b)
            resolved = {k: max(ts, b) if owner[k] is piece else ts for k, ts in resolved.items()}
        lock.check()
        assert lock.resolved_ts() == min(resolved.values())
        for key in KEYS:
            mine = [p for p in lock.pieces() if p.start_key <= key and (not p.end_key or key < p.end_key)]
            assert len(mine) == 1
            assert (mine[0].state is PieceState.LOCKED) == (owner[key] is not None)
