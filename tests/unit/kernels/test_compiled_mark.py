from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.kernels.compiled_mark import mark_file
from penstock.kernels.memory import signed


def test_the_mark_lies_with_the_kernels_and_is_of_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = mark_file()
    assert mark.parent == Path(signed.stats.cache_path)
    assert mark_file() == mark
    monkeypatch.setattr(penstock, "__version__", "99.0.0")
    assert mark_file() != mark
