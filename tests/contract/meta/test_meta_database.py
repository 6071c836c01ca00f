"""The meta database as a whole, on every kind of server: brought on by numbered steps, backed up, put back, checked."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from penstock.meta import backup as backups
from penstock.meta.api_tokens import ApiTokens, Role
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import MetaEngine, MetaSettings, sqlite_url
from penstock.meta.log_journal import JournalEntry, LogJournal
from penstock.meta.migration import planned
from penstock.meta.records import Actor, DispatcherRecord, FeedRecord, ReachedState, RetryRecord, SubscribeRecord
from penstock.meta.sealing import Seal
from penstock.meta.soundness import Findings, check
from penstock.meta.tables import META_VERSION, metadata, progress, subscribe
from penstock.model.errors import PenstockError

LEASE_MS = 10_000
NOW_MS = 1_800_000_000_000
WHO = Actor("ada", "the disk broke")
SECRET = '{"sink": {"uri": "s3://b/?secret-access-key=hunter2"}}'


@contextlib.contextmanager
def opened(url: str, as_found: bool = False) -> Iterator[MetaEngine]:
    engine = MetaEngine(url, MetaSettings(), as_found=as_found)
    try:
        yield engine
    finally:
        engine.close()


def refused(code: str) -> pytest.RaisesExc[PenstockError]:
    return pytest.RaisesExc(PenstockError, check=lambda error: error.code == code)


def fill(url: str) -> None:
    """Two feeds: one with a window under way, one that is tried again."""
    with MetaDatabase(url) as meta:
        first = [DispatcherRecord("100-0", 100, "shop", "orders", "{}"), DispatcherRecord("101-0", 101, "shop", "ü😀", "{}")]
        tables = [SubscribeRecord("shop", "orders", "", 100, sink="s3://b"), SubscribeRecord("shop", "ü😀", "", 101)]
        for name in ("a", "b"):
            meta.create_feed(FeedRecord(name, f"uuid-{name}", SECRET), tables, first)
        epoch = meta.claim("a", "server~1", LEASE_MS) or 0
        meta.lives.reach("a", epoch, ReachedState.CREATED, ReachedState.RUNNING)
        meta.begin_window("a", epoch, 0, 10, "{}")
        meta.commit_window("a", epoch, 0, 10, {"100-0": {"x": 3}}, rows=5)
        meta.begin_window("a", epoch, 10, 20, '{"plan": 1}')
        meta.record_error("b", meta.claim("b", "server~1", LEASE_MS) or 0, "SINK_UNAVAILABLE", "no", RetryRecord(1, 2, 3))
    journal = LogJournal(url, "mysql", reader="server~1")
    journal.save(JournalEntry(5, "0-1-5"))
    journal.close()
    tokens = ApiTokens(url)
    tokens.create("dashboard", Role.READ, 0, lambda: "t" * 40)
    tokens.close()


def rows(url: str) -> dict[str, list[dict[str, Any]]]:
    with opened(url) as engine, engine.read() as connection:
        return {
            table.name: [dict(row._mapping) for row in connection.execute(sa.select(table).order_by(*table.primary_key.columns))]
            for table in metadata.sorted_tables
        }


def found(url: str, key: dict[str, str] | None = None) -> Findings:
    with opened(url, as_found=True) as engine:
        return check(engine, Seal(url, key or {}))


class TestSteps:
    """The tables as version 2 had them, with rows."""

    @pytest.fixture
    def old(self, url: str) -> str:
        fill(url)
        with opened(url) as engine, engine.write() as connection:
            before = [dict(row._mapping) for row in connection.execute(sa.select(subscribe))]
            moved = [dict(row._mapping) for row in connection.execute(sa.select(progress))]
            subscribe.drop(connection)
            progress.drop(connection)
            was = sa.MetaData()
            numbers = [sa.Column(name, sa.BigInteger, nullable=False) for name in _GONE if name != "progress_last_snapshot_key"]
            key = sa.Column("cluster_id", sa.Integer, primary_key=True, autoincrement=False)
            old_subscribe = sa.Table("subscribe", was, key, *(c._copy() for c in subscribe.columns), sa.Column("db_id", sa.BigInteger))
            sa.Index("subscribe_by_name", old_subscribe.c.subscribe_name)
            text = sa.Column("progress_last_snapshot_key", sa.Text, nullable=False)
            old_progress = sa.Table("progress", was, *(c._copy() for c in progress.columns), *numbers, text)
            sa.Index("progress_by_name", old_progress.c.subscribe_name, old_progress.c.range_id, unique=True)
            was.create_all(connection)
            connection.execute(old_subscribe.insert(), [row | {"cluster_id": 0, "db_id": 0} for row in before])
            connection.execute(old_progress.insert(), [row | dict.fromkeys(_GONE, 0) | {"progress_last_snapshot_key": ""} for row in moved])
            connection.exec_driver_sql("UPDATE meta_version SET version = 2")
        return url

    def test_a_dry_run_shows_them_and_opening_does_them(self, old: str) -> None:
        with opened(old, as_found=True) as engine:
            shown = planned(engine)
            assert planned(engine) == shown, "nothing was done"
        assert (shown.version, shown.to_version, [step.version for step in shown.steps]) == (2, META_VERSION, [3])
        assert any("cluster_id" in statement or "subscribe_before" in statement for statement in shown.steps[0].statements)
        assert found(old).problems == [f"it has version 2, this Penstock speaks {META_VERSION}: see `penstock meta upgrade --dry-run`"]
        with MetaDatabase(old) as meta:
            assert [(t.table_name, t.table_id, t.owner) for t in meta.feed_tables("a")] == [
                ("orders", 100, "server~1"),
                ("ü😀", 101, "server~1"),
            ]
            assert meta.progress("a").positions == {"100-0": {"x": 3}}
            with pytest.raises(PenstockError):
                meta.create_feed(FeedRecord("c", "u", "{}"), [SubscribeRecord("d", "t", "", 1), SubscribeRecord("d", "t", "", 2)])
        with opened(old, as_found=True) as engine, engine.read() as connection:
            looked = sa.inspect(connection)
            assert {c["name"] for c in looked.get_columns("subscribe")} == {c.name for c in subscribe.columns}
            assert {c["name"] for c in looked.get_columns("progress")} == {c.name for c in progress.columns}
            assert {i["name"] for i in looked.get_indexes("subscribe")} >= {"subscribe_by_name"}
            assert planned(engine).steps == []
        assert found(old).problems == []


_GONE = ("progress_stage", "progress_current_snapshot_version", "progress_last_snapshot_key", "progress_last_log_index")


class TestBackup:
    def test_what_is_restored_is_what_was_there_but_nobodys(self, url: str, tmp_path: Path) -> None:
        fill(url)
        file = tmp_path / "backup"
        with opened(url, as_found=True) as engine:
            header = backups.write_backup(engine, file, NOW_MS)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert (header.feeds, header.meta_version) == (2, META_VERSION)
        before = rows(url)
        with refused("CONFIG_INVALID"), opened(url, as_found=True) as engine:
            backups.write_backup(engine, file, NOW_MS)
        again = sqlite_url(tmp_path / "again.db")
        header, lines = backups.read_backup(file)
        with opened(again) as engine:
            done = backups.restore(engine, header, lines, actor=WHO, now_ms=NOW_MS + 5_000)
        after = rows(again)
        assert (done.feeds, done.tokens) == (2, 0)
        grown = done.epochs_grew_by
        assert grown > 5_000, "no database commits a claim each millisecond"
        for table, same in before.items():
            if table not in {"feed", "subscribe", "feed_audit", "log_reader", *_EMPTY, "meta_version"}:
                assert after[table] == same, table
        assert [after[table] for table in _EMPTY] == [[]] * len(_EMPTY)
        nobody = {"owner": "", "lease_until_ms": 0}
        assert after["feed"] == [row | nobody | {"epoch": row["epoch"] + grown, "reached_state": "stopped"} for row in before["feed"]]
        assert after["subscribe"] == [row | {"owner": ""} for row in before["subscribe"]]
        assert after["log_reader"] == [row | nobody | {"epoch": row["epoch"] + grown} for row in before["log_reader"]]
        assert [r["what"] for r in after["feed_audit"] if r["feed"] == "a"][-1] == "restore"
        assert found(again).problems == []
        with MetaDatabase(again) as meta:
            # Who owned it before is fenced, and whoever comes next has an epoch that nobody had.
            with refused("FENCED"):
                meta.commit_window("a", before["feed"][0]["epoch"], 10, 20, {})
            assert meta.claim("a", "other", LEASE_MS) == before["feed"][0]["epoch"] + grown + 1

    def test_a_backup_is_one_state_while_others_write(self, url: str, tmp_path: Path) -> None:
        fill(url)
        with MetaDatabase(url) as meta, opened(url, as_found=True) as engine, engine.read() as connection:
            connection.execute(sa.text("SELECT COUNT(*) FROM feed")).scalar()
            meta.create_feed(FeedRecord("c", "u", "{}"), [])
            with (tmp_path / "b").open("xb") as sink:
                header = backups._write(connection, engine.kind, sink, NOW_MS)
        assert header.feeds == 2
        _, lines = backups.read_backup(tmp_path / "b")
        assert {row["name"] for table, row in lines if table == "feed"} == {"a", "b"}

    def test_only_an_empty_database_takes_one_unless_it_is_forced(self, url: str, tmp_path: Path) -> None:
        fill(url)
        with opened(url, as_found=True) as engine:
            backups.write_backup(engine, tmp_path / "b", NOW_MS)
        with MetaDatabase(url) as meta:
            for _ in range(3):
                assert meta.take_over("server~2") is not None
                meta.claim("a", "server~2", LEASE_MS)
            meta.create_feed(FeedRecord("later", "u", "{}"), [])
            given = meta.get_feed("a").epoch
        for force in (False, True):
            header, lines = backups.read_backup(tmp_path / "b")
            with opened(url) as engine:
                if not force:
                    with refused("META_NOT_EMPTY"):
                        backups.restore(engine, header, lines, actor=WHO, now_ms=NOW_MS)
                    assert {row["name"] for row in rows(url)["feed"]} == {"a", "b", "later"}
                else:
                    backups.restore(engine, header, lines, actor=WHO, now_ms=NOW_MS, force=True, with_tokens=True)
        after = rows(url)
        assert {row["name"] for row in after["feed"]} == {"a", "b"}
        assert [row["name"] for row in after["api_token"]] == ["dashboard"]
        assert min(row["epoch"] for row in after["feed"]) > given

    def test_nothing_is_restored_under_a_server_that_lives(self, tmp_path: Path) -> None:
        url = sqlite_url(tmp_path / "meta.db")
        fill(url)
        with opened(url, as_found=True) as engine:
            backups.write_backup(engine, tmp_path / "b", NOW_MS)
        with opened(url) as engine:
            with engine.write() as connection:
                connection.execute(metadata.tables["server"].insert().values(owner="x", url="", state="active", seen_ms=NOW_MS))
            header, lines = backups.read_backup(tmp_path / "b")
            with refused("META_NOT_EMPTY"):
                backups.restore(engine, header, lines, actor=WHO, now_ms=NOW_MS + 1_000, force=True)
        assert len(rows(url)["feed"]) == 2

    @pytest.mark.parametrize("harm", ["cut", "changed", "added", "other"])
    def test_a_file_that_is_not_whole_is_refused(self, harm: str, tmp_path: Path) -> None:
        url = sqlite_url(tmp_path / "meta.db")
        fill(url)
        with opened(url, as_found=True) as engine:
            backups.write_backup(engine, tmp_path / "b", NOW_MS)
        lines = (tmp_path / "b").read_bytes().splitlines(keepends=True)
        harmed = {
            "cut": lines[:-1],
            "changed": [line.replace(b'"shop"', b'"shup"') for line in lines],
            "added": [*lines[:-1], lines[-2], lines[-1]],
            "other": [b"something else\n"],
        }[harm]
        (tmp_path / "b").write_bytes(b"".join(harmed))
        with refused("META_BACKUP_BROKEN"):
            backups.read_backup(tmp_path / "b")

    def test_secrets_stay_sealed_and_their_key_is_needed(self, tmp_path: Path) -> None:
        url, again = sqlite_url(tmp_path / "meta.db"), sqlite_url(tmp_path / "other" / "meta.db")
        fill(url)
        with opened(url, as_found=True) as engine:
            header = backups.write_backup(engine, tmp_path / "b", NOW_MS)
        assert header.sealed == 2
        assert b"hunter2" not in (tmp_path / "b").read_bytes()
        (tmp_path / "other").mkdir()
        header, lines = backups.read_backup(tmp_path / "b")
        with opened(again) as engine:
            backups.restore(engine, header, lines, actor=WHO, now_ms=NOW_MS)
        told = found(again)
        assert told.problems == []
        assert any("no key here opens them" in left for left in told.not_checked)
        with MetaDatabase(again) as meta, refused("META_SEALED"):
            meta.get_feed("a")
        os.link(tmp_path / "meta.key", tmp_path / "other" / "meta.key")
        with MetaDatabase(again) as meta:
            assert json.loads(meta.get_feed("a").config) == json.loads(SECRET)


_EMPTY = ("log_position", "server", "feed_retry", "api_token", "commit_mark")

HARMS: dict[str, tuple[str, str]] = {
    "orphan": ("DELETE FROM feed WHERE name = 'b'", "subscribe has rows of the feed b, which is not there"),
    "ahead": ("UPDATE progress SET checkpoint_ts = 99", "feed a: 100-0 is at 99, ahead of the checkpoint 10"),
    "window": ("UPDATE pending_window SET from_ts = 9", "feed a: the window (9, 20] does not begin at the checkpoint 10"),
    "epoch": ("UPDATE progress SET epoch = 99", "feed a: 100-0 was written under an epoch that the feed never had"),
    "state": ("UPDATE feed SET reached_state = 'odd' WHERE name = 'a'", "feed a: its states 'running', 'odd' are not known"),
    "owner": ("UPDATE subscribe SET owner = 'x' WHERE subscribe_name = 'a'", "feed a: its tables are owned by x, the feed by server~1"),
    "retry": ("DELETE FROM feed_retry", "feed b: nobody says when it is tried again"),
    "twice": (
        "INSERT INTO dispatcher SELECT feed, range_id, 7, 0, table_id, db_name, table_name, document FROM dispatcher",
        "feed a: the dispatcher 101-0 lives twice",
    ),
    "position": ("UPDATE progress SET position = 'x'", "feed a: the position of 100-0 cannot be read"),
    "foreign": ("UPDATE progress SET range_id = '7-7'", "feed a: progress of 7-7, which is no dispatcher of it"),
}


def test_a_check_finds_what_does_not_hold_together(url: str) -> None:
    fill(url)
    assert (found(url).problems, found(url).feeds) == ([], 2)
    with opened(url) as engine:
        for statement, problem in HARMS.values():
            with contextlib.suppress(_UndoneError), engine.write() as connection:
                connection.exec_driver_sql(statement)
                assert problem in list(_problems(connection)), (statement, list(_problems(connection)))
                raise _UndoneError
    assert found(url).problems == []


class _UndoneError(Exception):
    pass


def _problems(connection: sa.Connection) -> Iterator[str]:
    from penstock.meta.soundness import _LOOKS

    for look in _LOOKS:
        yield from look(connection)


def test_a_database_that_is_none_is_told(tmp_path: Path, new_database: Callable[[str], str]) -> None:
    with refused("META_UNAVAILABLE"):
        MetaEngine(sqlite_url(tmp_path / "no.db"), MetaSettings(), as_found=True)
    assert not (tmp_path / "no.db").exists()
    empty = new_database("mariadb")
    assert found(empty).problems == ["there is no meta database: the table meta_version is missing"]
    with refused("META_INCOMPATIBLE"), opened(empty, as_found=True) as engine:
        planned(engine)
