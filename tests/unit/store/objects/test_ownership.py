"""Epochs of shared objects: each has one owner, whoever claims at the same time, and only the newest may write."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path

import pytest

from penstock.model.errors import PenstockError
from penstock.store.objects.objects import ObjectSpace
from penstock.store.objects.ownership import NOTE, Ownership, check_unshared


def test_each_epoch_has_one_owner_whoever_claims_at_the_same_time(tmp_path: Path) -> None:
    space = ObjectSpace((tmp_path / "shared").as_uri())
    found: list[Ownership] = []
    together = threading.Barrier(6)

    def claim(number: int) -> None:
        together.wait(60)
        found.append(Ownership.claim(space, tmp_path / f"disk-{number}", random.Random(number)))

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.epoch for one in found) == [1, 2, 3, 4, 5, 6]
    for one in found:
        if one.epoch == 6:
            one.check()
        else:
            with pytest.raises(PenstockError, match=r"\[FENCED\]"):
                one.check()


def test_a_directory_goes_on_with_its_log_until_another_comes(tmp_path: Path) -> None:
    space = ObjectSpace((tmp_path / "shared").as_uri())
    disk = tmp_path / "disk"
    first = Ownership.claim(space, disk, random.Random(1))
    assert (first.epoch, first.goes_on) == (1, False)
    # A crash before the note: the log, if any, is of no epoch.
    second = Ownership.claim(space, disk, random.Random(2))
    assert (second.epoch, second.goes_on) == (2, False)
    second.begin(disk, {})
    second.note(disk)
    # The same directory goes on by an epoch of its own, however often it crashes before that is noted.
    for number in (3, 4):
        again = Ownership.claim(space, disk, random.Random(number))
        assert (again.epoch, again.goes_on) == (number, True)
        with pytest.raises(PenstockError, match=r"\[FENCED\]"):
            second.check()
    again.note(disk)
    Ownership.claim(space, tmp_path / "other", random.Random(5))
    back = Ownership.claim(space, disk, random.Random(6))
    assert (back.epoch, back.goes_on) == (6, False)


def test_of_two_copies_of_a_directory_one_has_the_objects(tmp_path: Path) -> None:
    """A snapshot of a machine that is started twice: whoever comes later takes over, and the other one's log is worth nothing."""
    space = ObjectSpace((tmp_path / "shared").as_uri())
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    owner = Ownership.claim(space, disk, random.Random(1))
    owner.begin(disk, {})
    owner.note(disk)
    shutil.copytree(disk, copy)
    twin = Ownership.claim(space, copy, random.Random(2))
    assert (twin.epoch, twin.goes_on) == (2, True)
    with pytest.raises(PenstockError, match=r"\[FENCED\]"):
        owner.check()
    twin.note(copy)
    back = Ownership.claim(space, disk, random.Random(3))
    assert (back.epoch, back.goes_on) == (3, False)
    with pytest.raises(PenstockError, match=r"\[FENCED\]"):
        twin.check()


def test_the_log_of_another_epoch_goes_and_so_does_one_with_a_damaged_note(tmp_path: Path) -> None:
    space = ObjectSpace((tmp_path / "shared").as_uri())
    disk = tmp_path / "disk"
    owner = Ownership.claim(space, disk, random.Random(1))
    owner.begin(disk, {})
    owner.note(disk)
    (disk / NOTE).write_bytes((disk / NOTE).read_bytes().replace(b'"epoch":1', b'"epoch":7'))
    (disk / "wal").mkdir()
    (disk / "wal" / "000000000001.wal").write_bytes(b"rows")
    owner = Ownership.claim(space, disk, random.Random(2))
    assert (owner.epoch, owner.goes_on) == (2, False)
    owner.begin(disk, {})
    assert not (disk / "wal").exists()
    with pytest.raises(PenstockError, match="CONFIG_INVALID"):
        check_unshared(disk)
    check_unshared(tmp_path / "other")


def test_a_log_that_cannot_be_removed_stops_the_takeover(tmp_path: Path) -> None:
    """What is left of it would be replayed over manifests that know nothing of it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "wal").write_bytes(b"not a folder")
    owner = Ownership.claim(ObjectSpace((tmp_path / "shared").as_uri()), disk, random.Random(1))
    with pytest.raises(PenstockError, match=r"\[STORE_FAILED\].*earlier owner cannot be removed"):
        owner.begin(disk, {})
    assert not (disk / NOTE).exists()
