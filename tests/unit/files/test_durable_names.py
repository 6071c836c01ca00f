"""What a directory's sync asks of the system; that it outlives a crash of the machine no test can show."""

import os
import stat
from pathlib import Path

import pytest

from penstock.files.durable_names import sync_directory


def test_the_directory_itself_is_synced_and_nothing_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, synced = os.fsync, []

    def seen(handle: int) -> None:
        synced.append((handle, os.fstat(handle)))
        real(handle)

    monkeypatch.setattr(os, "fsync", seen)
    sync_directory(tmp_path)
    [(handle, found)] = synced
    assert stat.S_ISDIR(found.st_mode)
    assert found.st_ino == tmp_path.stat().st_ino
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sync_directory(tmp_path / "gone")
