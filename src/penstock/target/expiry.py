"""Lets files of a storage target expire: by the commit date of their directory, when a cron specification says so.

Invariants: what is deleted lies in a date directory that is older than the checkpoint by more than the days allowed; schema files never
expire. Runs anywhere.
"""

from __future__ import annotations

import datetime as dt
import logging

from penstock.format.layout.checkpoint import parse_checkpoint
from penstock.format.layout.paths import METADATA_PATH, DateSeparator
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.timestamp import physical_ms
from penstock.target.cron import Cron
from penstock.target.settings import StorageSinkSettings
from penstock.target.storage import ObjectTarget

_LOG = logging.getLogger(__name__)


def expiry_date(checkpoint_ts: int, days: int) -> str:
    """Return the first date that is kept: the checkpoint's date less the days."""
    moment = dt.datetime.fromtimestamp(physical_ms(checkpoint_ts) / 1000, dt.UTC) - dt.timedelta(days=days)
    return moment.date().isoformat()


def expired_paths(target: ObjectTarget, settings: StorageSinkSettings, before_date: str) -> list[str]:
    """Return the index and data files of date directories before this date, index files first.

    A reader that meets a directory half gone then finds no index, hence no files, and never a file that is missing. Numbers of an
    expired directory never count again: its date is over.
    """
    if settings.date_separator is not DateSeparator.DAY:
        raise PenstockError("CONFIG_INVALID", "files expire by the date of their directory; that needs date-separator day")
    data, indexes = [], []
    for path in target.paths():
        found, index = settings.layout.parse_data(path), settings.layout.parse_index(path)
        if index is not None and index.dir.date and index.dir.date < before_date:
            indexes.append(path)
        elif found is not None and found.dir.date and found.dir.date < before_date:
            data.append(path)
    return [*sorted(indexes), *sorted(data)]


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
    """Expires files when the cron specification says so; asked after each checkpoint. Not thread safe."""

    def __init__(self, target: ObjectTarget, settings: StorageSinkSettings, clock: Clock) -> None:
        self._target = target
        self._settings = settings
        self._clock = clock
        self._cron = Cron.parse(settings.file_cleanup_cron_spec)
        self._next = self._cron.next(self._now())

    def run_if_due(self) -> list[str]:
        """Expire files if the time has come; return what was deleted. A target that does not let go is left for the next time."""
        if not self._settings.file_expiration_days or self._now() < self._next:
            return []
        self._next = self._cron.next(self._now())
        try:
            gone = expire(self._target, self._settings, self._settings.file_expiration_days)
        except PenstockError as error:
            # Old files that stay harm nobody; a feed that stops because of them would.
            _LOG.warning("clean-up failed", extra={"target": self._target.name, "code": error.code})
            return []
        _LOG.info("clean-up", extra={"target": self._target.name, "files": len(gone)})
        return gone

    def _now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(self._clock.now_ms() / 1000, dt.UTC)
