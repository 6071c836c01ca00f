from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.files.private_files import create_private, open_private


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_file_is_for_its_user_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        create_private(tmp_path / "a")
        with open(tmp_path / "b", "w", encoding="ascii", opener=open_private) as file:
            file.write("x")
            assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in "ab"] == [0o600, 0o600]


def test_a_file_that_is_there_keeps_its_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("kept")
    create_private(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "kept"
