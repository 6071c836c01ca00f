"""Which tables a checkpoint does not cover, and that a target says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.feed.window.coverage import not_covered
from penstock.meta.table_states import TableCondition, TableState
from penstock.model.table_pattern import TablePatterns
from penstock.sink.catalog import open_maintainer
from penstock.target.storage import unfenced

SHOP = TablePatterns(("shop.*",))


def state(table_id: int, condition: TableCondition, settled_ts: int = 0, table: str = "t", schema: str = "shop") -> TableState:
    return TableState(table_id, schema, table, condition, settled_ts=settled_ts)


@pytest.mark.parametrize(
    ("known", "shown"),
    [
        (state(7, TableCondition.DOUBTFUL), {"shop.t": "doubtful"}),
        (state(7, TableCondition.QUARANTINED, settled_ts=90), {"shop.t": "quarantined"}),
        (state(7, TableCondition.OK, settled_ts=101), {"shop.t": "delivering"}),
        (state(7, TableCondition.OK, settled_ts=100), {}),
        (state(8, TableCondition.DOUBTFUL), {}),
        (state(0, TableCondition.QUARANTINED), {"shop.t": "quarantined"}),
        (state(0, TableCondition.QUARANTINED, schema="other"), {}),
    ],
)
def test_a_table_is_not_covered_from_its_doubt_until_its_corrections_are_delivered(known: TableState, shown: dict[str, str]) -> None:
    assert not_covered([known], [7], SHOP, 100) == shown


def test_metadata_names_what_it_does_not_cover_and_stops_when_it_does(tmp_path: Path) -> None:
    maintainer = open_maintainer(tmp_path.as_uri(), {}, unfenced)

    def published() -> object:
        return json.loads((tmp_path / "metadata").read_text())

    maintainer.publish_checkpoint(100, {"shop.t": "doubtful"})
    assert published() == {"checkpoint-ts": 100, "not-covered": {"shop.t": "doubtful"}}
    maintainer.publish_checkpoint(100)
    assert published() == {"checkpoint-ts": 100}
    maintainer.publish_checkpoint(99, {"shop.t": "doubtful"})
    assert published() == {"checkpoint-ts": 100}, "it never goes back"
