import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels.byte_ranges import compare_bytes, compare_ranges, copy_short, same_bytes, same_range

RUNS = st.binary(max_size=20) | st.text(alphabet="ab", max_size=20).map(str.encode)


def held(run: bytes, lead: int) -> tuple[np.ndarray, int]:
    """The run somewhere in memory, between bytes that must not matter, and its address."""
    array = np.frombuffer(b"<" * lead + run + b">", np.uint8)
    return array, array.ctypes.data + lead


@given(RUNS, RUNS, st.integers(0, 9), st.integers(0, 9))
def test_runs_compare_as_bytes_do(left: bytes, right: bytes, lead: int, other: int) -> None:
    one, one_at = held(left, lead)
    two, two_at = held(right, other)
    order = (left > right) - (left < right)
    assert compare_bytes(one_at, len(left), two_at, len(right)) == order
    assert compare_ranges(one, lead, lead + len(left), two, other, other + len(right)) == order
    assert same_range(one, lead, lead + len(left), two, other, other + len(right)) == (left == right)
    size = min(len(left), len(right))
    assert same_bytes(one_at, two_at, size) == (left[:size] == right[:size])


@given(st.binary(max_size=40), st.integers(0, 9))
def test_a_copy_writes_its_bytes_alone(run: bytes, lead: int) -> None:
    _, source = held(run, lead)
    out = np.full(len(run) + 2, 7, np.uint8)
    copy_short(np.uint64(source), np.uint64(out.ctypes.data + 1), np.int64(len(run)))
    assert out.tobytes() == b"\x07" + run + b"\x07"
