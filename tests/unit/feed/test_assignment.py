from penstock.feed.window.assignment import assign_dispatchers
from penstock.model.span import Span
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind
from penstock.source.contract import RangeEpoch, RangeInfo


class RangedUpstream:
    """Answers with ranges that begin at the given row keys."""

    def __init__(self, *starts: bytes) -> None:
        self._starts = starts

    def key_span(self, span: Span) -> tuple[bytes, bytes]:
        return b"t%d_r" % span.table_id, b"t%d_s" % span.table_id

    def ranges(self, span: Span):
        low, high = self.key_span(span)
        starts = [low + s for s in self._starts]
        ends = [*starts[1:], high]
        return [
            RangeInfo(i, span.table_id, start, end, RangeEpoch(1, 1), 1, "x:1")
            for i, (start, end) in enumerate(zip(starts, ends, strict=True))
        ]


def table(table_id: int) -> TableSchema:
    return TableSchema(table_id, "shop", f"t{table_id}", 1, (Column(1, "id", ColumnType(TypeKind.INT), False, True),))


def test_one_span_per_table_is_the_whole_table():
    dispatchers = assign_dispatchers([table(9), table(3)], RangedUpstream(b"", b"m"), 1)
    assert [d.span for d in dispatchers] == [Span(3), Span(9)]
    assert [(d.id.span, d.id.spans) for d in dispatchers] == [(0, 1), (0, 1)]


def test_spans_follow_range_borders_and_cover_the_table_without_hole_or_overlap():
    dispatchers = assign_dispatchers([table(3)], RangedUpstream(b"", b"d", b"h", b"p"), 2)
    spans = [d.span for d in dispatchers]
    assert spans == [Span(3, b"", b"h"), Span(3, b"h", b"")]
    assert [(d.id.span, d.id.spans) for d in dispatchers] == [(0, 2), (1, 2)]


def test_never_more_spans_than_ranges():
    dispatchers = assign_dispatchers([table(3)], RangedUpstream(b"", b"d"), 16)
    assert [d.span for d in dispatchers] == [Span(3, b"", b"d"), Span(3, b"d", b"")]
