"""What follows from a manifest when something happens to its span. The expectations are written out by hand."""

from typing import Any

import msgspec

from penstock.model.batch import BatchKind
from penstock.model.span import Span
from penstock.store.objects import manifest_edits
from penstock.store.objects.manifest import Manifest
from penstock.store.objects.merging import MergeCommit
from penstock.store.objects.object_file import ObjectKind, ObjectMeta

BEGUN = Manifest(0, 7, Span(3), 10, 10, 10, None, "")


def meta(path: str, max_ts: int, rows: int = 2, **given: Any) -> ObjectMeta:
    return ObjectMeta(path, ObjectKind.APPENDABLE, BatchKind.DATA, 7, 3, 1, max_ts, rows, 100, 100, 10, **given)


def changed(old: Any, **given: Any) -> Any:
    return msgspec.structs.replace(old, **given)


def test_a_span_begins_with_a_known_state_only_at_the_first_ts() -> None:
    assert manifest_edits.begun(7, Span(3), 10) == BEGUN
    assert manifest_edits.begun(7, Span(3), 0) == changed(BEGUN, resolved_ts=0, flushed_ts=0, history_start_ts=0, base_ts=0)


def test_rows_get_their_ids_in_the_order_in_which_objects_come() -> None:
    once = manifest_edits.flushed(BEGUN, [meta("a", 15), meta("b", 18, rows=3)], 20)
    assert once == changed(BEGUN, flushed_ts=20, objects=(meta("a", 15, first_row=1), meta("b", 18, 3, first_row=3)), next_row=6)
    filled = manifest_edits.filled(once, [meta("c", 12, rows=4)], 30, 12)
    assert filled == changed(once, base_ts=30, history_start_ts=12, objects=(*once.objects, meta("c", 12, 4, first_row=6)), next_row=10)
    assert manifest_edits.filled(once, [], None).history_start_ts == 10, "history does not grow backwards"


def test_a_merge_stands_for_its_sources_from_its_commit_on() -> None:
    old = manifest_edits.flushed(BEGUN, [meta("a", 15), meta("b", 18), meta("later", 25)], 25)
    commit = MergeCommit(30, (meta("m", 18, first_row=7),), (meta("t", 30, rows=1),))
    new = manifest_edits.merged(old, commit, {"a", "b"})
    a, b, later = old.objects
    transferred = meta("t", 30, 1, first_row=9, create_ts=30)
    kept = (changed(a, delete_ts=30), changed(b, delete_ts=30), later)
    assert new == changed(old, objects=(*kept, meta("m", 18, first_row=7, create_ts=30), transferred), transfer_ts=(30,), next_row=10)
    untold = manifest_edits.merged(old, MergeCommit(30, commit.merged, ()), {"a"})
    assert (untold.transfer_ts, untold.next_row) == ((), 9), "nothing was deleted meanwhile"


def test_what_leaves_is_replaced_where_the_state_is_known_and_old_where_it_is_not() -> None:
    objects = (meta("replaced", 15, delete_ts=22), meta("lives", 16), meta("young", 40, delete_ts=44))
    unknown = changed(BEGUN, flushed_ts=30, objects=objects, transfer_ts=(22, 44))
    known = changed(unknown, base_ts=12)
    assert manifest_edits.leaving(known, 50) == ([objects[0]], 22)
    assert manifest_edits.leaving(unknown, 50) == (list(objects[:2]), 22), "no further than what is flushed"
    assert manifest_edits.leaving(known, 21) == ([], 10)
    left = manifest_edits.without(known, [objects[0]], 22, known=True)
    assert left == changed(known, history_start_ts=22, base_ts=22, objects=objects[1:], transfer_ts=(44,))
    # A state that became known after the objects were chosen may rest on them.
    assert manifest_edits.without(known, [objects[0]], 22, known=False).base_ts is None


def test_a_span_that_begins_again_holds_nothing_but_its_row_ids() -> None:
    old = changed(manifest_edits.flushed(BEGUN, [meta("a", 15)], 20), base_ts=10, transfer_ts=(12,))
    assert manifest_edits.begun_again(old, 50) == changed(BEGUN, flushed_ts=50, history_start_ts=50, next_row=3)
