"""What holds the history of feeds back, and where a running store is found."""

from __future__ import annotations

import stat
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli.main import cli
from penstock.feed.formats.followed_store import address_of
from penstock.feed.window.assignment import Dispatcher
from penstock.feed.window.following import to_record
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.meta.records import FeedRecord
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.timestamp import compose_ts
from penstock.server.feeds.creation import FeedDocument
from penstock.server.feeds.feed_pins import FeedPins
from penstock.sink.contract import DispatcherId
from penstock.store.flight.address import FlightAddress, read_address, write_address
from penstock.store.history import HistoryNeeds
from penstock.store.settings import StoreSettings
from testing.checks.looked_inside import pins_of
from testing.twins.clock import SimulatedClock

SOURCE = "dataserver://127.0.0.1:1"
SPAN = Span(7)


def add_feed(meta: MetaDatabase, name: str, source: str, checkpoint_ts: int) -> None:
    dispatcher = Dispatcher(DispatcherId(7), SPAN, "d", "t")
    document = FeedDocument({}, source, (dispatcher,), 0)
    meta.create_feed(FeedRecord(name, name, document.to_json(), checkpoint_ts=checkpoint_ts), [], [to_record(dispatcher)])


def test_a_feed_that_does_not_run_holds_history_back_until_it_is_removed_or_too_old(tmp_path: Path) -> None:
    clock = SimulatedClock()
    needs = HistoryNeeds(StoreSettings(history_seconds=60, checkpoint_seconds=60, gc_ttl_seconds=3_600), clock)
    at = compose_ts(clock.now_ms())
    with closing(MetaDatabase(sqlite_url(tmp_path / "meta.db"), clock)) as meta:
        # With other credentials than the server's: it runs the feed all the same.
        add_feed(meta, "mine", "dataserver://cdc:old@127.0.0.1:1/", at)
        add_feed(meta, "elsewhere", "dataserver://127.0.0.1:2", 1)
        add_feed(meta, "before its snapshot", SOURCE, 0)
        pins = FeedPins(meta, needs, SOURCE, clock)
        assert pins.log_needed_from_ts() == 0, "the feeds are not known yet"
        pins.refresh()
        kept = compose_ts(clock.now_ms() - 3_600_000)
        assert pins.log_needed_from_ts() == kept < at, "the log since any snapshot of a feed that has delivered nothing"
        assert pins_of(needs, SPAN.span_id) == {"feed mine": at}
        epoch = meta.claim("before its snapshot", "test", 60_000) or 0
        meta.begin_window("before its snapshot", epoch, 0, at + 5, "{}")
        pins.refresh()
        assert pins_of(needs, SPAN.span_id) == {"feed mine": at, "feed before its snapshot": at + 5}
        assert pins.log_needed_from_ts() == at
        meta.remove_feed("before its snapshot")
        pins.refresh()
        clock.advance(1_800)
        assert needs.keep_above(SPAN.span_id) == at
        clock.advance(3_600)
        assert needs.keep_above(SPAN.span_id) > at, "not beyond gc-ttl"
        assert pins.log_needed_from_ts() > at
        meta.remove_feed("mine")
        pins.refresh()
        assert pins_of(needs, SPAN.span_id) == {}


def test_the_address_of_a_store_is_for_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    written = FlightAddress("grpc://127.0.0.1:9", "a-secret-token")
    file = write_address(tmp_path / "store", written)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "secret" not in repr(written)
    assert read_address(tmp_path) == read_address(tmp_path / "store") == written
    assert address_of({"data-dir": str(tmp_path)}) == address_of({"location": written.location, "token": written.token}) == written
    shown = CliRunner().invoke(cli, ["store", "address", str(tmp_path), "--output", "json"])
    assert (shown.exit_code, "a-secret-token" in shown.output) == (0, True)
    file.unlink()
    with pytest.raises(PenstockError, match=r"\[STORE_UNREACHABLE\]"):
        read_address(tmp_path)
    file.write_bytes(b"{")
    with pytest.raises(PenstockError, match=r"\[CONFIG_INVALID\]"):
        read_address(tmp_path)
    with pytest.raises(PenstockError, match="location: this option"):
        address_of({})
