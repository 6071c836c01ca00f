"""Points in time as people and programs write them: a ts, an ISO 8601 text with its zone, or a ``datetime`` with its zone.

A moment stands for the end of its millisecond: what was committed in it counts as up to it, and as nothing after it. So windows that meet
at a moment have every change once. A time without a zone is refused, because nobody can tell which one is meant. Runs anywhere.
"""

from __future__ import annotations

import datetime as dt

from penstock.model.errors import PenstockError
from penstock.model.timestamp import LOGICAL_MAX, PHYSICAL_MS_MAX, TS_MAX, compose_ts

Moment = int | str | dt.datetime
"""A ts, an ISO 8601 text, or a time with its zone."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_ZONE_HINT = "Write it as 2026-01-31T12:00:00Z or 2026-01-31T14:00:00+02:00; a naive datetime gets your zone by .astimezone()."


def ts_of(moment: Moment, key: str) -> int:
    """Return the ts of a moment; ``key`` is what it is told as where it is wrong (``CONFIG_INVALID``)."""
    if isinstance(moment, str):
        text = moment.strip()
        if text.isascii() and text.isdigit():
            moment = int(text)
        else:
            try:
                moment = dt.datetime.fromisoformat(text)
            except ValueError:
                raise PenstockError("CONFIG_INVALID", f"{key}: {text!r} is neither a ts nor a time", _ZONE_HINT) from None
    if isinstance(moment, dt.datetime):
        if moment.tzinfo is None:
            raise PenstockError("CONFIG_INVALID", f"{key}: {moment.isoformat()} has no time zone", _ZONE_HINT)
        since = (moment - _EPOCH) // dt.timedelta(milliseconds=1)
        return compose_ts(min(max(since, 0), PHYSICAL_MS_MAX), LOGICAL_MAX)
    if isinstance(moment, bool) or not isinstance(moment, int) or not 0 <= moment <= TS_MAX:
        raise PenstockError("CONFIG_INVALID", f"{key}: {moment!r} is neither a ts nor a time", _ZONE_HINT)
    return moment
