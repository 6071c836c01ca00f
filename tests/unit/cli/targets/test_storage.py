"""The verbs ``replay`` and ``storage``."""

import json
import sqlite3
from pathlib import Path

import pytest

from penstock.cli.main import run
from penstock.model.batch import Op
from penstock.model.table import Column, TableSchema
from penstock.model.timestamp import compose_ts
from penstock.model.types import ColumnType, TypeKind
from testing.paths.storage_lab import StorageLab

T0 = compose_ts(1_700_000_000_000)
DAY = 86_400_000 << 18
TABLE = TableSchema(
    1, "s", "t", T0, (Column(1, "id", ColumnType(TypeKind.BIGINT), False, True), Column(2, "name", ColumnType(TypeKind.VARCHAR, length=9)))
)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    lab = StorageLab(f"{(tmp_path / 'files').as_uri()}?protocol=canal-json")
    lab.write(TABLE, [(T0 + 1, Op.INSERT, 1, "a"), (T0 + 2, Op.INSERT, 2, "b"), (T0 + 3, Op.DELETE, 1, "a")])
    lab.write(TABLE, [(T0 + DAY, Op.INSERT, 3, "c")])
    lab.checkpoint(T0 + 2 * DAY)
    return (tmp_path / "files").as_uri()


def test_replay(uri: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = tmp_path / "replay.db"
    for rows in (4, 0):
        assert run(["replay", uri, f"sqlite:///{database}", "--set", "protocol=canal-json"]) == 0
        assert capsys.readouterr().out.splitlines()[-1].endswith(f"{rows} changes")
    with sqlite3.connect(database) as connection:
        assert sorted(connection.execute('SELECT * FROM "s.t"')) == [(2, "b"), (3, "c")]
    connection.close()


@pytest.mark.parametrize("verb", [["ls"], ["check"], ["expire", "--days", "1"]])
def test_what_is_not_there_is_told_and_not_made(tmp_path: Path, verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["storage", verb[0], str(tmp_path / "none"), *verb[1:]]) == 2
    assert "[SINK_URI_INVALID]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_replay_of_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", (tmp_path / "none").as_uri(), f"sqlite:///{tmp_path}/x.db"]) == 2
    assert "is no folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert run(["replay", tmp_path.as_uri(), f"sqlite:///{tmp_path}/x.db"]) == 75
    assert "CHECKPOINT_MISSING" in capsys.readouterr().err
    assert run(["replay", "file:///tmp/x?protocol=xml", "sqlite:////tmp/x.db"]) == 2
    assert "protocol" in capsys.readouterr().err


def test_ls_check_and_expire(uri: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = f"{uri}?protocol=canal-json"
    assert run(["storage", "ls", target, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"] == [
        {"schema": "s", "table": "t", "versions": 1, "files": 2, "first": "2023-11-14", "last": "2023-11-15"}
    ]
    assert (run(["storage", "check", target]), capsys.readouterr().out) == (
        0,
        "sound\ncompared with their checksums: 0 files\nnot checked: the bytes of 2 files of which no checksum is on record; "
        "whether rows are those of the source, which penstock verify compares\n",
    )
    assert run(["storage", "expire", target, "--days", "1", "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 files would be deleted"
    assert run(["storage", "expire", target, "--days", "1"]) == 0
    assert not list((tmp_path / "files").rglob("2023-11-14/*.json"))
    capsys.readouterr()
    (file,) = (tmp_path / "files").rglob("CDC*.json")
    file.write_bytes(b"{}\r\n")
    assert run(["storage", "check", target, "--output", "json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)
    assert finding["path"].endswith(file.name)
