from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.model.errors import PenstockError
from penstock.server.http.bodies import DEPTH_MAX, ITEMS_MAX, checked_tree


def nested(levels: int) -> dict[str, Any]:
    tree: Any = 1
    for _ in range(levels - 1):
        tree = [tree]
    return {"a": tree}


@pytest.mark.parametrize(
    "tree", [{}, {"a": [1, "ü", None, True, 1.5, {"b": "\U0001f600"}]}, nested(DEPTH_MAX - 1), {"a": [0] * (ITEMS_MAX - 3)}]
)
def test_what_can_be_kept_passes_as_it_is(tree: dict[str, Any]) -> None:
    assert checked_tree(tree) is tree
    json.dumps(tree, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ('{"a": "\\ud800"}', "surrogate"),
        ('{"\\udfff": 1}', "surrogate"),
        ('{"a": [{"b": NaN}]}', "finite"),
        ('{"a": 1e999}', "finite"),
        (json.dumps(nested(DEPTH_MAX)), "levels deep"),
        (json.dumps({"a": [0] * ITEMS_MAX}), "values"),
    ],
)
def test_what_python_reads_and_nobody_can_keep_is_refused(body: str, why: str) -> None:
    with pytest.raises(PenstockError, match=why) as refused:
        checked_tree(json.loads(body))
    assert refused.value.code == "CONFIG_INVALID"
