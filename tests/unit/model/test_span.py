import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from penstock.model.span import DDL_SPAN, DDL_TABLE_ID, Span, cut

KEYS = [b"", b"\x00", b"\x01", b"\x01\x00", b"\x02", b"\xff"]
keys = st.sampled_from(KEYS)


@st.composite
def spans(draw: st.DrawFn, table_ids: tuple[int, ...] = (1, 2)) -> Span:
    start = draw(keys)
    end = draw(st.sampled_from([b"", *(k for k in KEYS if k > start)]))
    return Span(draw(st.sampled_from(table_ids)), start, end)


def points(span: Span) -> set[tuple[int, bytes]]:
    """What the span holds of a small key space: the oracle of the set operations."""
    probes = {*KEYS, *(k + b"\x00" for k in KEYS), b"\xff\xff"}
    return {(span.table_id, k) for k in probes if k >= span.start_key and (span.end_key == b"" or k < span.end_key)}


def test_span_ids_are_what_they_always_were() -> None:
    assert Span(1).span_id == 266556614613687289
    assert Span(42, b"\x80", b"\x90").span_id == 1262924408856130672
    assert DDL_SPAN.span_id == 4391733604794244818


def test_another_process_agrees_on_the_id() -> None:
    code = r"from penstock.model.span import Span; print(Span(42, b'\x80', b'\x90').span_id)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env={"PYTHONHASHSEED": "7"})
    assert int(out.stdout) == Span(42, b"\x80", b"\x90").span_id


@given(spans(), spans())
def test_ids_differ_with_the_span_and_fit_a_signed_64_bit_number(a: Span, b: Span) -> None:
    assert 0 < a.span_id < 1 << 63
    assert (a.span_id == b.span_id) == (a == b)


def test_neighbouring_keys_do_not_run_together_in_the_id() -> None:
    assert Span(1, b"a", b"bc").span_id != Span(1, b"ab", b"c").span_id
    assert Span(1, b"|", b"").span_id != Span(1, b"", b"|").span_id


def test_a_span_holds_its_start_and_not_its_end() -> None:
    span = Span(1, b"b", b"d")
    assert [span.contains(k) for k in (b"a", b"b", b"c\xff", b"d", b"e")] == [False, True, True, False, False]
    assert Span(1).contains(b"")
    assert Span(1, b"b").contains(b"\xff" * 9)


@given(spans(), st.lists(st.binary(max_size=2), max_size=8), st.one_of(st.none(), st.integers(1, 5)))
def test_a_span_that_is_cut_is_its_pieces_in_order(span: Span, keys: list[bytes], pieces_max: int | None) -> None:
    pieces = cut(span, keys, pieces_max)
    assert (pieces[0].start_key, pieces[-1].end_key) == (span.start_key, span.end_key)
    assert [p.start_key for p in pieces[1:]] == [p.end_key for p in pieces[:-1]]
    inside = {k for k in keys if span.contains(k) and k != span.start_key}
    assert {p.start_key for p in pieces[1:]} <= inside
    assert len(pieces) == min(len(inside) + 1, pieces_max or len(inside) + 1)


def test_spans_sort_by_table_and_start() -> None:
    assert sorted([Span(2), Span(1, b"b"), Span(1, b"a", b"b")]) == [Span(1, b"a", b"b"), Span(1, b"b"), Span(2)]


def test_the_ddl_span_is_a_table_of_its_own() -> None:
    assert Span(DDL_TABLE_ID) == DDL_SPAN
