from __future__ import annotations

import os
from pathlib import Path

from penstock.target.local_tree import is_linked, walk


def test_what_lies_behind_a_link_is_not_part_of_a_target(tmp_path: Path) -> None:
    root, other = tmp_path / "target", tmp_path / "other"
    (root / "s" / "t").mkdir(parents=True)
    (other / "2020-01-01").mkdir(parents=True)
    (other / "2020-01-01" / "CDC1.csv").write_text("of somebody else")
    (root / "s" / "t" / "CDC1.csv").write_text("x")
    (root / "s" / "t" / "CDC2.csv#1").write_text("being written")
    (root / "s" / "linked").symlink_to(other)
    (root / "s" / "file").symlink_to(other / "2020-01-01" / "CDC1.csv")
    (root / "s" / "again").symlink_to(root)
    os.mkfifo(root / "s" / "pipe")
    (root / "s" / "bell\x07").write_text("")
    Path(os.fsdecode(os.fsencode(root / "s") + b"/\xff")).write_text("")
    files, strangers = walk(root)
    assert files == ["s/t/CDC1.csv"]
    assert dict(strangers) == {
        "s/again": f"a link to {root}; what it leads to is not part of the target",
        "s/bell\x07": "a name that no object can have",
        "s/file": f"a link to {other}/2020-01-01/CDC1.csv; what it leads to is not part of the target",
        "s/linked": f"a link to {other}; what it leads to is not part of the target",
        "s/pipe": "neither a file nor a directory",
        "s/\\udcff": "a name that no object can have",
    }
    assert is_linked(root, "s/linked/2020-01-01/CDC1.csv")
    assert is_linked(root, "s/file")
    assert not is_linked(root, "s/t/CDC1.csv")


def test_a_target_that_is_reached_by_a_link_is_itself(tmp_path: Path) -> None:
    (tmp_path / "real" / "s").mkdir(parents=True)
    (tmp_path / "real" / "s" / "a").write_text("")
    (tmp_path / "moved").symlink_to(tmp_path / "real")
    assert not is_linked(tmp_path / "moved", "s/a")
