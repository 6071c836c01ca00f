"""When clean-up runs: the cron expressions of the storage sink, six fields with seconds first, ``@daily`` and the like, or ``@every 1h``.

Owns parsing and the next moment after a given one, in UTC. Invariant: the next moment is always later than the given one. Runs anywhere.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from penstock.settings.values import parse_duration

_FIELDS = (("second", 0, 59), ("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_NAMES = {
    **{name: at + 1 for at, name in enumerate(["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"])},
    **{name: at for at, name in enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])},
}
_SHORT = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
_DAYS_AHEAD_MAX = 366 * 9
"""A date that comes at all comes within nine years: the 29th of February across a century."""


@dataclass(frozen=True, slots=True)
class Cron:
    """An expression: either the allowed values of each field, or a period."""

    fields: tuple[frozenset[int], ...] = ()
    any_day: tuple[bool, bool] = (True, True)
    every: dt.timedelta | None = None

    @classmethod
    def parse(cls, text: str) -> Cron:
        """Read an expression; ValueError says what is wrong with it."""
        spec = _SHORT.get(text.strip().lower(), text.strip())
        if spec.startswith("@every "):
            seconds = parse_duration(spec.removeprefix("@every "), "s")
            if not seconds:
                raise ValueError(f"{text!r} would never end")
            return cls(every=dt.timedelta(seconds=seconds))
        parts = spec.split()
        if len(parts) != len(_FIELDS):
            raise ValueError(f"{text!r} must have six fields, seconds first, or be @daily, @every 1h or the like")
        fields = [_values(part, *limits) for part, limits in zip(parts, _FIELDS, strict=True)]
        # Sunday is 0 and 7.
        fields[5] = frozenset(day % 7 for day in fields[5])
        return cls(tuple(fields), (parts[3] in {"*", "?"}, parts[5] in {"*", "?"}))

    def next(self, after: dt.datetime) -> dt.datetime:
        """Return the first moment after this one."""
        if self.every is not None:
            return after + self.every
        seconds, minutes, hours, _, _, _ = self.fields
        start = after.replace(microsecond=0) + dt.timedelta(seconds=1)
        for ahead in range(_DAYS_AHEAD_MAX):
            day = (start + dt.timedelta(days=ahead)).date()
            if not self._on(day):
                continue
            first = start.time() if ahead == 0 else dt.time(0)
            for hour in sorted(h for h in hours if h >= first.hour):
                for minute in sorted(m for m in minutes if (hour, m) >= (first.hour, first.minute)):
                    later = [s for s in seconds if (hour, minute, s) >= (first.hour, first.minute, first.second)]
                    if later:
                        return dt.datetime.combine(day, dt.time(hour, minute, min(later)), after.tzinfo)
        raise ValueError("the expression names a date that never comes")

    def _on(self, day: dt.date) -> bool:
        _, _, _, days, months, weekdays = self.fields
        by_day, by_weekday = day.day in days, (day.weekday() + 1) % 7 in weekdays
        # As cron has it: where both are restricted, either suffices.
        both = by_day and by_weekday if any(self.any_day) else by_day or by_weekday
        return day.month in months and both


def _values(text: str, name: str, low: int, high: int) -> frozenset[int]:
    allowed: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        try:
            if span in {"*", "?"}:
                first, last = low, high
            else:
                begin, dash, end = span.partition("-")
                first = _number(begin)
                last = _number(end) if dash else (high if step else first)
            stride = int(step) if step else 1
        except ValueError:
            raise ValueError(f"{text!r} is not a {name}") from None
        if not (low <= first <= last <= high and stride >= 1):
            raise ValueError(f"{text!r} is not a {name} within {low}..{high}")
        allowed.update(range(first, last + 1, stride))
    return frozenset(allowed)


def _number(text: str) -> int:
    return _NAMES[text.lower()] if text.lower() in _NAMES else int(text)
