"""Credentials in the meta database: sealed, whoever reads the files."""

from __future__ import annotations

import base64
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.access.secret_variables import META_KEY_VARIABLE as KEY_VARIABLE
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.meta.records import FeedRecord
from penstock.meta.sealing import Seal
from penstock.model.errors import PenstockError

CONFIG = '{"source":"mysql://cdc:S3cretOfTheSource@db","sink":"s3://b?secret-access-key=S3cretOfTheSink"}'
KEYS = [base64.b64encode(bytes([n]) * 32).decode() for n in range(3)]


def test_no_file_of_the_database_shows_a_secret_and_another_process_opens_it(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "meta.db")
    with MetaDatabase(url) as meta:
        created = meta.create_feed(FeedRecord("f", "uuid", CONFIG), [])
        assert created.config == CONFIG
        for file in tmp_path.iterdir():
            assert b"S3cret" not in file.read_bytes(), file
        key = tmp_path / "meta.key"
        assert key.stat().st_mode & 0o777 == 0o600
        with MetaDatabase(url) as again:
            assert again.get_feed("f") == created
            assert again.list_feeds() == [created]
    assert sorted(f.name for f in tmp_path.iterdir() if f.name.startswith("meta.key")) == ["meta.key"]
    key.unlink()
    with MetaDatabase(url) as without, pytest.raises(PenstockError, match="META_SEALED"):
        without.get_feed("f")


def test_keys_of_the_environment(tmp_path: Path) -> None:
    url = "postgresql://db/meta"
    first = Seal(url, {KEY_VARIABLE: KEYS[0]})
    sealed = first.close(CONFIG)
    assert "S3cret" not in sealed
    assert Seal(url, {KEY_VARIABLE: f"{KEYS[1]}, {KEYS[0]}"}).open(sealed) == CONFIG
    for environment in ({KEY_VARIABLE: KEYS[1]}, {}):
        with pytest.raises(PenstockError, match="META_SEALED"):
            Seal(url, environment).open(sealed)
    with pytest.raises(PenstockError, match="META_SEALED"):
        first.open(sealed[:-8] + "AAAAAAA=")
    with pytest.raises(PenstockError, match="CONFIG_INVALID") as wrong:
        Seal(url, {KEY_VARIABLE: "short"}).close(CONFIG)
    assert "short" not in str(wrong.value)
    # A database of a server that several machines share has no file of its own; what was there before stays readable.
    assert Seal(url, {}).close(CONFIG) == CONFIG
    assert first.open(CONFIG) == CONFIG
    assert Seal(sqlite_url(tmp_path / "m.db"), {KEY_VARIABLE: KEYS[0]}).open(sealed) == CONFIG
    assert not (tmp_path / "m.key").exists()


def test_feeds_that_are_created_at_once_have_one_key(tmp_path: Path) -> None:
    url, together = sqlite_url(tmp_path / "meta.db"), threading.Barrier(8)

    def sealed(at: int) -> str:
        seal = Seal(url, {})
        together.wait(60)
        return seal.close(f"config {at}")

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(sealed, range(8)))
    assert [Seal(url, {}).open(text) for text in texts] == [f"config {at}" for at in range(8)]
    assert [file.name for file in tmp_path.iterdir()] == ["meta.key"]


def test_a_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "meta.db")
    sealed = Seal(url, {}).close("secret")
    (tmp_path / "meta.key").chmod(0o644)
    for use in (lambda: Seal(url, {}).close("other"), lambda: Seal(url, {}).open(sealed)):
        with pytest.raises(PenstockError, match=r"CONFIG_INVALID.*others than this user"):
            use()
    (tmp_path / "meta.key").chmod(0o600)
    assert Seal(url, {}).open(sealed) == "secret"
