"""What a target must allow, found out on real folders."""

from pathlib import Path

from penstock.sink.catalog import check_target
from penstock.sink.storage.maintainer import StorageMaintainer
from penstock.target.settings import StorageSinkSettings
from penstock.target.storage import TargetAddress, unfenced

ALL = ["target: reachable", "target: free", "target: create", "target: create-only", "target: list", "target: delete"]


def found(folder: Path, feed: str | None = None) -> dict[str, bool]:
    return {finding.name: finding.ok for finding in check_target(folder.as_uri(), {}, feed)}


def test_an_empty_target_allows_everything_and_stays_as_it_was(tmp_path: Path) -> None:
    assert found(tmp_path / "a" / "b") == dict.fromkeys(ALL, True)
    assert list(tmp_path.iterdir()) == [], "folders that it made are gone"
    (tmp_path / "c").mkdir()
    assert found(tmp_path / "c") == dict.fromkeys(ALL, True)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == []


def test_a_target_of_others_is_not_free(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert found(tmp_path) == dict.fromkeys(ALL, True) | {"target: free": False}
    mine = tmp_path / "mine"
    StorageMaintainer(TargetAddress(mine.as_uri()).open(guard=unfenced), StorageSinkSettings()).claim("orders/1")
    (stranger,) = [f for f in check_target(mine.as_uri()) if f.name == "target: free"]
    assert (stranger.ok, stranger.blocks, "orders" in stranger.found) == (False, True, True)
    (own,) = [f for f in check_target(mine.as_uri(), {}, "orders") if f.name == "target: free"]
    assert (own.ok, own.blocks) == (False, False), "its own server goes on with it"


def test_what_is_no_target_is_told_without_its_secrets(tmp_path: Path) -> None:
    (wrong,) = check_target("ftp://user:geheim@host/x")
    assert not wrong.ok
    assert "geheim" not in f"{wrong.found} {wrong.wanted}"
    file = tmp_path / "file"
    file.write_text("x")
    assert found(file / "below")["target: reachable"] is False
