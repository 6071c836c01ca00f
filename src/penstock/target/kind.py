"""What every kind of target has, whatever it is: the settings that a feed looks at, and on whose behalf it is written to. Runs anywhere."""

from __future__ import annotations

from typing import ClassVar, Protocol

import msgspec

from penstock.model.table import TableSchema


class SinkRun(msgspec.Struct, frozen=True):
    """The run of a feed that writes to a target: a target that keeps who wrote last refuses every run with a lower epoch."""

    feed: str = ""
    epoch: int = 0
    claimant: str = ""
    """How the target knows the feed, where it has claimed it."""


NO_RUN = SinkRun()
"""Of somebody who only looks, checks or claims."""


class TargetSettings(Protocol):
    """The settings of one kind of target, a frozen dataclass; one that exists is valid."""

    free_options: ClassVar[frozenset[str]]
    """The fields that may change while a feed lives: what is in the target stays readable, and right."""
    cut_options: ClassVar[frozenset[str]]
    """Those of them that decide what a window becomes in the target: a window on record is finished under the old ones."""

    @property
    def flush_interval_ms(self) -> int:
        """Return the time between checkpoints that the options ask for."""

    @property
    def format_name(self) -> str:
        """Return in which form changes stand in the target, for people."""

    @property
    def indexes_transactions(self) -> bool:
        """Return whether transactions over all tables can be told, or are applied, whole."""

    @property
    def numbers_events(self) -> bool:
        """Return whether all rows of a window go through one task, dispatcher by dispatcher, because each tells its place among them."""

    def needs_before(self, table: TableSchema) -> bool:
        """Return whether events of a table must carry ``_key`` and BEFORE rows."""
