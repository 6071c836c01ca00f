from __future__ import annotations

import os
import pwd
import stat
import threading
from pathlib import Path

import pytest

from penstock.config.known_servers import ensure_token
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.meta.transactions.servers import home_of
from penstock.model.batch import Op
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.server.data_directory import DataDirectory
from penstock.store.event_store import ColumnarEventStore
from penstock.store.flight.address import FlightAddress, write_address
from testing.checks.change_batches import TABLE, both_sides


def refused(code: str) -> pytest.RaisesExc[PenstockError]:
    return pytest.RaisesExc(PenstockError, check=lambda error: error.code == code)


def modes(directory: Path) -> set[str]:
    """The modes of a directory and of every file below, without those of directories inside: nobody comes that far."""
    found = [directory, *(file for file in directory.rglob("*") if file.is_file())]
    return {f"{stat.S_IMODE(file.stat().st_mode):o}" for file in found}


def test_nobody_else_looks_inside(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir()
    path.chmod(0o755)
    before = os.umask(0)
    try:
        directory = DataDirectory(path)
        directory.owner(None, "1234")
        meta = MetaDatabase(sqlite_url(path / "meta.db"))
        store = ColumnarEventStore(directory.store)
        span = Span(TABLE.table_id)
        store.register_span(span.span_id, span, 100)
        store.put_schemas([TABLE])
        durable = threading.Event()
        store.append(span.span_id, both_sides(span.span_id, [(110, Op.INSERT, 7, "seven")]), durable.set)
        assert durable.wait(60)
        store.advance_resolved_ts(span.span_id, 120)
        assert store.flush(span.span_id)
        write_address(directory.store, FlightAddress("grpc://127.0.0.1:1", "token"))
        ensure_token(path)
        files = {file.suffix or file.name for file in path.rglob("*") if file.is_file()}
        assert files >= {".db", ".db-wal", ".wal", ".json", "lock", "server-id", "api-token"}
        assert modes(path) == {"700", "600"}
        store.close()
        meta.close()
        directory.close()
    finally:
        os.umask(before)


def test_data_directory_has_one_user_at_a_time(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path / "data")
    owner = first.owner(None, "12345678")
    with refused("CONFIG_INVALID"):
        DataDirectory(tmp_path / "data")
    first.close()
    second = DataDirectory(tmp_path / "data")
    again = second.owner(None, "87654321")
    assert (again != owner, home_of(again)) == (True, home_of(owner))
    assert second.owner("a~name", "56780000ff") == "a~name-12345678~56780000"
    assert home_of("a~name-12345678~56780000") == "a~name-12345678"
    second.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_what_another_user_made_is_not_used(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    theirs, own = tmp_path / "theirs", tmp_path / "own"
    for path in (theirs, own):
        path.mkdir(mode=0o700)
    os.chown(theirs, nobody, -1)
    (tmp_path / "link").symlink_to(own)
    os.chown(tmp_path / "link", nobody, -1, follow_symlinks=False)
    for path in (theirs, tmp_path / "link"):
        with refused("CONFIG_INVALID"):
            DataDirectory(path)
        assert list(path.iterdir()) == []
    # A token that they know, put there while they still could.
    (own / "api-token").write_text("pst_known", encoding="ascii")
    (own / "api-token").chmod(0o600)
    os.chown(own / "api-token", nobody, -1)
    DataDirectory(own).close()
    with refused("CONFIG_INVALID"):
        ensure_token(own)


def test_a_directory_that_a_start_made_goes_with_it_and_no_other(tmp_path: Path) -> None:
    place = tmp_path / "some" / "where"
    first = DataDirectory(place, tentative=True)
    (place / "store").mkdir()
    first.close()
    assert list(tmp_path.iterdir()) == []
    second = DataDirectory(place, tentative=True)
    second.keep()
    second.close()
    third = DataDirectory(place, tentative=True)
    third.close()
    assert [one.name for one in place.iterdir()] == ["lock"]
