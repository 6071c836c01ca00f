"""Lets files of a storage target expire: by the commit date of their directory, when a cron specification says so.

Invariants: what is deleted lies in the target itself, not behind a link, in a date directory that is older than the checkpoint by more
than the days allowed; schema files never expire. Runs anywhere.
"""

from __future__ import annotations

import datetime as dt

from penstock.format.layout.checkpoint import parse_checkpoint
from penstock.format.layout.checksum_record import parse_record_path
from penstock.format.layout.paths import METADATA_PATH, OWNER_DIR, DateSeparator
from penstock.format.layout.transaction_index import parse_transactions_path
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.timestamp import physical_ms
from penstock.target.cron import Cron
from penstock.target.settings import StorageSinkSettings
from penstock.target.storage import ObjectTarget

_RECORD_PATH = f"{OWNER_DIR}/clean-up"


def expiry_date(checkpoint_ts: int, days: int) -> str:
    """Return the first date that is kept: the checkpoint's date less the days."""
    moment = dt.datetime.fromtimestamp(physical_ms(checkpoint_ts) / 1000, dt.UTC) - dt.timedelta(days=days)
    return moment.date().isoformat()


def expired_paths(target: ObjectTarget, settings: StorageSinkSettings, before_date: str) -> list[str]:
    """Return the index and data files of date directories before this date, index files first, and what was recorded of them.

    A reader that meets a directory half gone then finds no index, hence no files, and never a file that is missing. Numbers of an
    expired directory never count again: its date is over.
    """
    if settings.date_separator is not DateSeparator.DAY:
        raise PenstockError("CONFIG_INVALID", "files expire by the date of their directory; that needs date-separator day")
    data, indexes, records = [], [], []
    for path in target.own_paths()[0]:
        found, index = settings.layout.parse_data(path), settings.layout.parse_index(path)
        if index is not None and index.dir.date and index.dir.date < before_date:
            indexes.append(path)
        elif found is not None and found.dir.date and found.dir.date < before_date:
            data.append(path)
        elif (window_end_ts := _window_end(path)) is not None and expiry_date(window_end_ts, 0) < before_date:
            # No row of a window is younger than its end, so every file of the record goes, or is gone.
            records.append(path)
    return [*sorted(indexes), *sorted(data), *sorted(records)]


def _window_end(path: str) -> int | None:
    """Return the end of the window that a record of checksums or transactions is about; None where it is none."""
    transactions = parse_transactions_path(path)
    return parse_record_path(path) if transactions is None else transactions[0]


def expire(target: ObjectTarget, settings: StorageSinkSettings, days: int) -> list[str]:
    """Delete what is older than the checkpoint by more than these days; return what was deleted."""
    content = target.find(METADATA_PATH)
    if content is None:
        return []
    paths = expired_paths(target, settings, expiry_date(parse_checkpoint(content), days))
    for path in paths:
        target.delete(path)
    return paths


class CleanUp:
    """Expires files when the cron specification says so. Not thread safe.

    When it last ran stands in the target, so that whoever runs the feed next neither passes a time over nor repeats one.
    """

    def __init__(self, target: ObjectTarget, settings: StorageSinkSettings, clock: Clock) -> None:
        self._target = target
        self._days = settings.file_expiration_days
        self._settings = settings
        self._clock = clock
        self._cron = Cron.parse(settings.file_cleanup_cron_spec)
        self._last: dt.datetime | None = None

    def run_if_due(self) -> list[str]:
        """Expire files if the time has come; return what was deleted. Where the target does not let go, the next time is waited for."""
        now = self._now()
        if self._last is None:
            self._last = self._recorded() or self._record(now)
        if now < self._cron.next(self._last):
            return []
        self._last = now
        gone = expire(self._target, self._settings, self._days)
        self._record(now)
        return gone

    def wait_s(self) -> float:
        """Return in how many seconds the next time comes; 0 where it has, or is not known yet."""
        return 0.0 if self._last is None else max(0.0, (self._cron.next(self._last) - self._now()).total_seconds())

    def _recorded(self) -> dt.datetime | None:
        content = self._target.find(_RECORD_PATH)
        try:
            return None if content is None else dt.datetime.fromisoformat(content.decode().strip())
        except ValueError:
            return None

    def _record(self, moment: dt.datetime) -> dt.datetime:
        self._target.put(_RECORD_PATH, f"{moment.isoformat()}\n".encode())
        return moment

    def _now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self._clock.now_ms() / 1000, dt.UTC)
