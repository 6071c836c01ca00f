"""How the puller of one log waits, saves and retries. Values only. Runs in the log service."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SingleLogPullerSettings:
    """Intervals and backoffs of the reader."""

    retry_min_s: float = 0.1
    retry_max_s: float = 10.0
    advance_interval_s: float = 0.1
    """How often a resolved ts leaves at most while changes arrive."""
    journal_interval_s: float = 1.0
    journal_bytes: int = 64 << 20
    gather_s: float = 0.05
    """How long the reader waits for further spans before it reads again from further back."""
    settle_timeout_s: float = 120.0
    confirm_interval_s: float = 5.0
    """How often the upstream is told what is durable here; a store makes a resolved ts durable well within this time."""
    hand_over_bytes_max: int = 16 << 20
    """How much of a table's corrections is on its way to the store at once."""
    watch_keys_max: int = 4_000_000
    """How many changed keys of a table are remembered while it is read again; with more, that round is given up."""
