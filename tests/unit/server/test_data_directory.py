from __future__ import annotations

from pathlib import Path

import pytest

from penstock.model.errors import PenstockError
from penstock.server.data_directory import DataDirectory


def refused(code: str) -> pytest.RaisesExc[PenstockError]:
    return pytest.RaisesExc(PenstockError, check=lambda error: error.code == code)


def test_data_directory_has_one_user_at_a_time(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path / "data")
    owner = first.owner(None, "1234")
    with refused("CONFIG_INVALID"):
        DataDirectory(tmp_path / "data")
    first.close()
    second = DataDirectory(tmp_path / "data")
    assert second.owner(None, "5678") == owner
    assert second.owner("name", "5678") == "name-1234"
    second.close()
