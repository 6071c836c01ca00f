"""Whose a target is: claims, foreign marks, and a mark that is gone."""

from __future__ import annotations

import itertools
import json
import shutil

import pytest

from penstock.model.errors import PenstockError
from penstock.sink.catalog import open_maintainer
from penstock.target.kind import SinkRun
from penstock.target.owner_mark import OwnerMark
from penstock.target.storage import ObjectTarget, unfenced

_NAMES = itertools.count()


@pytest.fixture
def target() -> ObjectTarget:
    return ObjectTarget.open(f"memory://owner-mark-{next(_NAMES)}")


def codes_of(*calls) -> list[str]:
    codes = []
    for call in calls:
        try:
            call()
            codes.append("")
        except PenstockError as error:
            codes.append(error.code)
    return codes


def test_of_two_feeds_one_has_the_target(target) -> None:
    mark = OwnerMark(target)
    assert mark.find() is None
    mark.check("one/1")
    mark.claim("one/1")
    mark.claim("one/1")
    assert json.loads(target.find(".penstock/feed.json"))["feed"] == "one/1"
    mark.check("one/1")
    refused = codes_of(lambda: mark.check("one/2"), lambda: mark.claim("two/1"), lambda: mark.require("two/1"))
    assert refused == ["SINK_OCCUPIED"] * 3
    assert list(target.paths()) == [".penstock/feed.json"]


def test_a_mark_that_is_gone_is_missed_and_not_made_again(target) -> None:
    mark = OwnerMark(target)
    mark.claim("one/1")
    mark.require("one/1")
    target.delete(".penstock/feed.json")
    assert codes_of(lambda: mark.require("one/1")) == ["SINK_LOST"]
    assert target.is_empty()


def test_a_mark_that_cannot_be_read_is_nobodys_leave_to_write(target) -> None:
    target.put_new(".penstock/feed.json", b"[]")
    mark = OwnerMark(target)
    assert codes_of(mark.find, lambda: mark.check("a"), lambda: mark.claim("a"), lambda: mark.require("a")) == ["FILE_MALFORMED"] * 4


@pytest.mark.parametrize("scheme", ["file", "delta+file", "iceberg+file"])
def test_no_window_counts_in_a_target_that_lost_its_mark(tmp_path, scheme) -> None:
    place = tmp_path / "out"
    maintainer = open_maintainer(f"{scheme}://{place}", {}, unfenced, run=SinkRun("one", 1, "one/1"))
    maintainer.claim("one/1")
    assert maintainer.published_ts() == 0
    maintainer.record_window(0, 10, [])
    place.rename(tmp_path / "away")
    assert codes_of(lambda: maintainer.record_window(10, 20, []), maintainer.published_ts) == ["SINK_LOST"] * 2
    assert not list(place.glob("*"))
    shutil.rmtree(place, ignore_errors=True)
    (tmp_path / "away").rename(place)
    maintainer.record_window(10, 20, [])
