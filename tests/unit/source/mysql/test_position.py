from __future__ import annotations

import pytest

from penstock.source.mysql.position import LogPlace

SID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize("text", ["bin.000001:4", "bin.000007:120@0-1-5", f"b.1:9@{SID}:1-5", "b.1:9@", f"b.1:9#{SID}"])
def test_places_read_back_and_are_compared_by_gtids_first(text: str) -> None:
    assert str(LogPlace.parse(text)) == text
    assert LogPlace.parse(text).reached(LogPlace.parse(text))


def test_the_order_of_places() -> None:
    assert LogPlace.parse("bin.000010:4").reached(LogPlace.parse("bin.000009:500"))
    assert not LogPlace.parse("bin.000010:4").reached(LogPlace.parse("bin.000010:5"))
    assert LogPlace.parse("other.000001:4@0-2-9").reached(LogPlace.parse("bin.000009:500@0-1-9"))
    assert not LogPlace.parse("bin.000010:4@0-1-8").reached(LogPlace.parse("bin.000009:500@0-1-9"))
