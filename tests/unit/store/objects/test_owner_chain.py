"""Objects go on with the meta database that their last owner worked with, not with a copy that was made before."""

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN
from penstock.store.event_store import ColumnarEventStore
from penstock.store.objects.objects import ObjectSpace
from penstock.store.objects.owner_chain import OwnerChain

Open = Callable[[str, str], ColumnarEventStore]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Open a store on a disk of its own, which has the objects, with a meta database."""
    with ExitStack() as stack:

        def open_store(disk: str, meta: str) -> ColumnarEventStore:
            database = stack.enter_context(MetaDatabase(sqlite_url(tmp_path / meta)))
            chain = OwnerChain(partial(database.object_links, "s"), partial(database.note_object_link, "s"), random.Random(disk))
            objects = ObjectSpace((tmp_path / "shared").as_uri())
            store = ColumnarEventStore(tmp_path / disk, objects=objects, shared=True, chain=chain)
            stack.callback(store.close)
            store.register_span(DDL_SPAN.span_id, DDL_SPAN, 1)
            return store

        yield open_store


def copied(database: Path, copy: Path) -> None:
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as into:
        source.backup(into)


def refused(act: Callable[[], object]) -> None:
    with pytest.raises(PenstockError) as caught:
        act()
    assert caught.value.code == "OBJECTS_FOREIGN"


def test_servers_of_one_meta_database_take_the_objects_from_each_other(opened: Open) -> None:
    for disk in ("one", "two", "one", "three"):
        opened(disk, "meta.db").close()


def test_a_copy_of_the_meta_database_is_refused_while_the_owner_goes_on(tmp_path: Path, opened: Open) -> None:
    owner = opened("one", "meta.db")
    copied(tmp_path / "meta.db", tmp_path / "copy.db")
    assert owner._sharing is not None
    owner._sharing.share()
    refused(lambda: opened("two", "copy.db"))
    owner._sharing.share()
    owner.close()
    opened("two", "meta.db").close()
    refused(lambda: opened("three", "copy.db"))


def test_of_two_that_start_with_copies_one_stays(tmp_path: Path, opened: Open) -> None:
    opened("one", "meta.db").close()
    copied(tmp_path / "meta.db", tmp_path / "copy.db")
    opened("two", "copy.db").close()
    refused(lambda: opened("one", "meta.db"))
    opened("two", "copy.db").close()


def test_a_new_meta_database_begins_with_what_is_there(opened: Open) -> None:
    opened("one", "meta.db").close()
    opened("two", "new.db").close()
    refused(lambda: opened("one", "meta.db"))


def test_marks_go_on_without_the_meta_database(tmp_path: Path) -> None:
    """The link stays the one before: a successor knows it."""
    noted: list[str] = []
    away = False

    def note(link: str) -> None:
        if away:
            raise PenstockError("META_UNAVAILABLE", "away")
        noted.append(link)

    chain = OwnerChain(lambda: noted, note, random.Random(1))
    chain.check("", "place")
    first = chain.link()
    assert chain.link() == first, "one that could not be written is written later"
    chain.wrote(first)
    away = True
    assert chain.link() == first
    chain.wrote(first)
    away = False
    second = chain.link()
    assert second != first
    assert noted == [first, second]


def test_many_links_of_others_do_not_push_out_the_newest(tmp_path: Path) -> None:
    with MetaDatabase(sqlite_url(tmp_path / "meta.db")) as meta:
        assert meta.object_links("s") == []
        for number in range(20):
            meta.note_object_link("s", f"{number:016x}")
        meta.note_object_link("other", "x")
        assert meta.object_links("s") == [f"{number:016x}" for number in range(12, 20)]
