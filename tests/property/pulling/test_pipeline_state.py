"""Any interleaving of data, resolved ts and persist callbacks keeps the contract of the span pipeline."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.puller.pipeline_state import PipelineState

steps = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.integers(1, 100)),
        st.tuples(st.just("resolved"), st.integers(0, 60)),
        st.tuples(st.just("persisted"), st.integers(0, 1000)),
        st.tuples(st.just("again"), st.integers(0, 1000)),
    ),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(steps)
def test_resolved_advances_only_after_earlier_data(script: list[tuple[str, int]]) -> None:
    state = PipelineState()
    unpersisted: list[int] = []
    persisted: set[int] = set()
    held = 0
    asked: list[tuple[int, int]] = []  # (ts, how many batches came before)
    advanced: list[int] = []

    def flush() -> None:
        for ts in state.take_ready():
            assert not advanced or ts > advanced[-1]
            advanced.append(ts)
            # The oracle: some request for this ts has all the batches that came before it persisted.
            assert any(t == ts and all(s in persisted for s in range(1, n + 1)) for t, n in asked)

    for what, number in script:
        if what == "data":
            unpersisted.append(state.add_data(number))
            held += number
        elif what == "resolved":
            if number:
                asked.append((number, state.next_data_seq - 1))
                state.add_resolved(number)
        elif what == "persisted" and unpersisted:
            seq = unpersisted.pop(number % len(unpersisted))
            weight = state.add_persisted(seq)
            assert weight is not None
            held -= weight
            persisted.add(seq)
        elif what == "again" and persisted:
            assert state.add_persisted(sorted(persisted)[number % len(persisted)]) is None
        flush()
        assert sum(state.inflight.values()) == held
    for seq in unpersisted:
        held -= state.add_persisted(seq) or 0
        persisted.add(seq)
    flush()
    assert held == 0
    assert not state.done_set
    assert state.pending_barriers == 0
    assert state.acked_seq == state.next_data_seq - 1
    # Nothing is withheld: in the end the largest ts that was asked for is out.
    assert (advanced[-1] if advanced else 0) == max((t for t, _ in asked), default=0)
