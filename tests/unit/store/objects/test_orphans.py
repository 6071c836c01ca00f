"""Files that nothing names: which of a span count, by whom and when they were written."""

from pathlib import Path

import pytest

from penstock.model.span import Span
from penstock.store.log.bootstrap_log import BootstrapLog, BootstrapPlan
from penstock.store.objects import orphans
from penstock.store.objects.objects import ObjectSpace

OWN, BULK, OTHER = "spans/7/objects/a.arrow", "spans/7/bulk/b.arrow", "spans/70/objects/c.arrow"


@pytest.fixture
def space(tmp_path: Path) -> ObjectSpace:
    space = ObjectSpace(tmp_path.as_uri())
    for path in (OWN, BULK, OTHER):
        assert space.put_new(path, [b"rows"])
    return space


def test_the_owner_s_own_files_are_those_of_the_span(space: ObjectSpace) -> None:
    assert orphans.files(space, 7) == {OWN}
    assert orphans.remove(space, {OWN, "spans/7/objects/gone.arrow"}) == 2
    assert set(space.list_names("")) == {BULK, OTHER}


def test_files_of_a_bootstrap_wait_for_its_records(space: ObjectSpace) -> None:
    log = BootstrapLog(space, 7)
    written_ms = max(space.list_modified("").values())
    assert orphans.files_before(space, 7, written_ms + 60_000) == {OWN, BULK}
    log.begin(BootstrapPlan(7, 100, (Span(3),)))
    assert orphans.files_before(space, 7, 0) == set()
    written_ms = max(space.list_modified("").values())
    assert BULK not in orphans.files_before(space, 7, written_ms), "the plan is as young as that"
    assert log.plan() is not None
    assert orphans.files_before(space, 7, written_ms + 60_000) == {OWN, BULK}
    assert log.plan() is None
