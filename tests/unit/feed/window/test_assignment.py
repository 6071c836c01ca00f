from penstock.feed.window.assignment import assign_dispatchers
from penstock.model.span import Span, cut
from penstock.model.table import Column, TableSchema
from penstock.model.types import ColumnType, TypeKind


class DividedUpstream:
    """Divides tables at the given row keys."""

    def __init__(self, *cuts: bytes) -> None:
        self._cuts = cuts

    def divide(self, span: Span, pieces_max: int | None = None):
        return cut(span, self._cuts, pieces_max)


def table(table_id: int) -> TableSchema:
    return TableSchema(table_id, "shop", f"t{table_id}", 1, (Column(1, "id", ColumnType(TypeKind.INT), False, True),))


def test_one_span_per_table_is_the_whole_table():
    dispatchers = assign_dispatchers([table(9), table(3)], DividedUpstream(b"m"), 1)
    assert [d.span for d in dispatchers] == [Span(3), Span(9)]
    assert [(d.id.span, d.id.spans) for d in dispatchers] == [(0, 1), (0, 1)]


def test_spans_follow_range_borders_and_cover_the_table_without_hole_or_overlap():
    dispatchers = assign_dispatchers([table(3)], DividedUpstream(b"d", b"h", b"p"), 2)
    spans = [d.span for d in dispatchers]
    assert spans == [Span(3, b"", b"h"), Span(3, b"h", b"")]
    assert [(d.id.span, d.id.spans) for d in dispatchers] == [(0, 2), (1, 2)]


def test_never_more_spans_than_ranges():
    dispatchers = assign_dispatchers([table(3)], DividedUpstream(b"d"), 16)
    assert [d.span for d in dispatchers] == [Span(3, b"", b"d"), Span(3, b"d", b"")]
