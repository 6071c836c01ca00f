from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from penstock.meta.database import MetaDatabase
from penstock.meta.engine import MetaSettings, sqlite_url
from penstock.meta.records import FeedRecord, SubscribeRecord
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.store.flight.credentials import make_tls
from testing.servers.rogue import Peer, mysql_in_clear, postgres_in_clear, rogue


def test_another_version_is_refused(tmp_path: Path) -> None:
    MetaDatabase(sqlite_url(tmp_path / "meta.db")).close()
    with closing(sqlite3.connect(tmp_path / "meta.db")) as raw, raw:
        raw.execute("UPDATE meta_version SET version = 99")
    with pytest.raises(PenstockError, match="99") as caught:
        MetaDatabase(sqlite_url(tmp_path / "meta.db"))
    assert caught.value.code == "META_INCOMPATIBLE"


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.db").write_bytes(b"not a database at all" * 100)
    with pytest.raises(PenstockError) as caught:
        MetaDatabase(sqlite_url(tmp_path / "meta.db"))
    assert caught.value.code == "META_INCOMPATIBLE"


def test_missing_directory_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(PenstockError) as caught:
        MetaDatabase(sqlite_url(tmp_path / "none" / "meta.db"))
    assert caught.value.code == "META_UNAVAILABLE"


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "no url", "mysql://u:p@ss:Hunter2/x@h:3306/x"])
def test_urls_that_cannot_be_shared_are_refused(url: str) -> None:
    with pytest.raises(PenstockError) as caught:
        MetaDatabase(url)
    assert caught.value.code == "CONFIG_INVALID"
    assert "Hunter2" not in str(caught.value)


def test_a_locked_database_is_unavailable_within_the_timeout(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "meta.db")
    with (
        MetaDatabase(url, settings=MetaSettings(busy_timeout_s=0.05)) as meta,
        closing(sqlite3.connect(tmp_path / "meta.db", isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(PenstockError) as caught:
            meta.create_feed(FeedRecord("f", "u", "{}"), [])
        other.execute("ROLLBACK")
        assert caught.value.code == "META_UNAVAILABLE"
        assert meta.list_feeds() == []
        meta.create_feed(FeedRecord("f", "u", "{}"), [])


def test_what_is_committed_is_there_for_other_processes_however_often_it_was_opened_here(tmp_path: Path) -> None:
    # SQLite's locks are the process's: one that is lost lets whoever closes the database elsewhere take its log away.
    looks = "import sqlite3, sys; print(*(name for (name,) in sqlite3.connect(sys.argv[1]).execute('SELECT name FROM feed')))"

    def seen_elsewhere() -> list[str]:
        told = subprocess.run([sys.executable, "-c", looks, str(tmp_path / "meta.db")], capture_output=True, text=True, check=True)
        return told.stdout.split()

    url = sqlite_url(tmp_path / "meta.db")
    with MetaDatabase(url) as first:
        first.create_feed(FeedRecord("a", "u", "{}"), [])
        with MetaDatabase(url):
            assert seen_elsewhere() == ["a"]
        first.create_feed(FeedRecord("b", "u", "{}"), [])
        assert seen_elsewhere() == ["a", "b"]
        assert (tmp_path / "meta.db-wal").exists()


def test_commits_survive_a_crash_of_the_machine(tmp_path: Path) -> None:
    with MetaDatabase(sqlite_url(tmp_path / "meta.db")) as meta, meta._engine.read() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_no_text_shows_secrets(tmp_path: Path) -> None:
    record = FeedRecord("f", "u", '{"sink":"s3://b/?secret-access-key=hunter2"}')
    table = SubscribeRecord("d", "t", "f", 1, sink="s3://b/?secret-access-key=hunter2")
    texts = [repr(record), repr(table)]
    with MetaDatabase(sqlite_url(tmp_path / "meta.db")) as meta, pytest.raises(PenstockError) as caught:
        meta.create_feed(record, [table, table])
    texts += [str(caught.value), str(caught.value.__cause__)]
    assert not [text for text in texts if "hunter2" in text]


@pytest.mark.parametrize(("scheme", "script"), [("mysql", mysql_in_clear), ("postgresql", postgres_in_clear)])
def test_a_server_that_nobody_knows_hears_no_password(scheme: str, script: Callable[[Peer], None]) -> None:
    with rogue(script) as server, pytest.raises(PenstockError) as wrong:
        MetaDatabase(f"{scheme}://meta:S3cretOfMeta@127.0.0.1:{server.port}/meta")
    assert b"S3cretOfMeta" not in server.heard
    assert "S3cretOfMeta" not in f"{wrong.value} {wrong.value.hint}"
    with rogue(script) as server, pytest.raises(PenstockError):
        MetaDatabase(f"{scheme}://meta:S3cretOfMeta@127.0.0.1:{server.port}/meta?clear_password=on")
    assert b"S3cretOfMeta" in server.heard


def test_an_authority_that_the_driver_forgets_names_no_server(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_bytes(make_tls(["127.0.0.1"], SystemClock()).readers_ca)
    with rogue(mysql_in_clear) as server, pytest.raises(PenstockError):
        MetaDatabase(f"mysql://meta:S3cretOfMeta@127.0.0.1:{server.port}/meta?ssl_ca={authority}&ssl_disabled=true")
    assert b"S3cretOfMeta" not in server.heard
