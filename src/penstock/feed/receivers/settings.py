"""How receivers are run: how many, how often they report, and when one counts as lost. Runs in the server and on executors."""

from __future__ import annotations

from dataclasses import dataclass

PARTS_PER_RECEIVER = 2
"""So that what a lost receiver held goes to more than one of the others."""


@dataclass(frozen=True)
class ReceiverSettings:
    """How the receivers of one source are run.

    Attributes:
        receivers: how many there are; each takes a core for as long as it runs.
        beside: how many receivers other sources of the server have.
        report_interval_s: how often each reports.
        lost_s: after so long without a report a receiver counts as lost, and after so long without an answer it ends by itself.
        settle_s: how long the first ones wait for the others before they are given all there is.
        backoff_s: the first pause before a receiver is started again; it doubles up to ``backoff_max_s``.
        stop_s: how long receivers may take to write down what they hold when the server ends.
    """

    receivers: int = 2
    beside: int = 0
    report_interval_s: float = 0.25
    lost_s: float = 60.0
    settle_s: float = 5.0
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    stop_s: float = 15.0

    @property
    def cores(self) -> int:
        """Return how many cores the receivers of all sources of the server take."""
        return self.receivers + self.beside
