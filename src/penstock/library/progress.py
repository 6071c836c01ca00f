"""What a feed has reached, as programs see it. Runs anywhere."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.model.timestamp import to_datetime


@dataclass(frozen=True, slots=True)
class Progress:
    """What a feed has reached.

    Attributes:
        state: ``starting``, ``running``, ``paused``, ``failed``, …, as ``penstock feed show`` has it.
        checkpoint_ts: everything that was committed up to this ts is delivered; 0 before the first checkpoint.
        rows: how many rows were delivered.
        lag_s: how far the checkpoint is behind the clock; None before the first one.
        uncovered: tables that the checkpoint does not speak for, with why.
    """

    state: str
    checkpoint_ts: int
    rows: int
    lag_s: float | None
    uncovered: tuple[str, ...] = ()

    @property
    def checkpoint_time(self) -> dt.datetime | None:
        """Return the checkpoint as a time in UTC; None before the first one."""
        return to_datetime(self.checkpoint_ts) if self.checkpoint_ts else None

    @staticmethod
    def of(feed: Mapping[str, Any]) -> Progress:
        """Return what the API shows of a feed."""
        uncovered = tuple(f"{table['name']} ({table['state']})" for table in feed.get("uncovered", ()))
        return Progress(str(feed["state"]), int(feed["checkpoint_ts"]), int(feed["rows"]), feed["lag_s"], uncovered)
