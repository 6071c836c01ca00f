"""A kind of target: everything that the rest of the system asks of it. One folder under ``sink/`` is one kind.

The folder's ``__init__`` has ``SCHEMES``, the URI schemes that are its own, and imports nothing; its ``kind.py`` has ``KIND``, which is a
``TargetKind``. ``sink/catalog.py`` finds it by the scheme of a URI, so nothing else changes where a target is added. Invariants: what a
kind is made of is imported when it is opened; no text that it raises shows a secret. Runs anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from penstock.model.errors import PenstockError
from penstock.settings.masking import mask_uri
from penstock.target.kind import SinkRun, TargetSettings

if TYPE_CHECKING:
    from penstock.model.clock import Clock
    from penstock.model.finding import Finding
    from penstock.sink.contract import Sink, SinkMaintainer
    from penstock.target.expiry import CleanUp
    from penstock.target.state import TargetState
    from penstock.target.storage import Guard


class LetterBox(Protocol):
    """The dead letters of a feed: what its target refused for good, waiting for somebody to look at it."""

    def names(self) -> Sequence[str]:
        """Return the names of all, the oldest first."""

    def show(self, name: str) -> dict[str, Any]:
        """Return one, without secrets; raise ``DEAD_LETTER_UNKNOWN`` where there is none of this name."""
        ...

    def retry(self, name: str) -> None:
        """Offer one to the target once more; it is gone when this returns. Raise where it is refused again."""


class TargetKind(Protocol):
    """One kind of target. Methods without a word about it here are pure; ``options`` are those of the feed's ``sink`` table."""

    name: str
    option_keys: frozenset[str]
    """Every key of its settings, as a user writes it; such a parameter of the URI is an option."""
    server_only_options: frozenset[str] = frozenset()
    """Options that name something of the server's machine: only its own configuration gives them."""
    caller_parameters: frozenset[str] = frozenset()
    """Parameters of the URI beside its options that a caller of the API may give; storage has lists of its own."""

    place_options: frozenset[str] = frozenset()
    """Options that are URIs of files elsewhere: they may name connections, and a caller names only what it may write to."""

    def settings(self, uri: str, options: Mapping[str, Any]) -> tuple[str, TargetSettings]:
        """Return the URI without options, and the settings; raise ``SINK_URI_INVALID`` or ``CONFIG_INVALID`` with every fault."""
        ...

    def make_sink(self, uri: str, options: Mapping[str, Any], guard: Guard | None, run: SinkRun) -> Sink:
        """Return the sink of one task; without a guard where the task cannot ask who owns the feed."""
        ...

    def make_maintainer(
        self, uri: str, options: Mapping[str, Any], guard: Guard, run: SinkRun, answer_s_max: float | None = None
    ) -> SinkMaintainer:
        """Return the part that acts once per feed; where somebody waits, a call to it ends soon after ``answer_s_max``."""
        ...

    def make_clean_up(self, uri: str, options: Mapping[str, Any], guard: Guard, clock: Clock) -> CleanUp | None:
        """Return what lets content expire, or None where it is kept for ever."""
        return None

    def make_state(self, uri: str, options: Mapping[str, Any]) -> TargetState:
        """Return what reads the target back for a feed whose history is lost; raise ``SINK_NOT_READABLE`` where it cannot be."""
        raise PenstockError("SINK_NOT_READABLE", f"{mask_uri(uri)}: what is in a target of kind {self.name} cannot be read back")

    def check(self, uri: str, options: Mapping[str, Any], feed: str | None) -> list[Finding]:
        """Return what a doctor finds of a target that the given feed is meant to deliver to. Leaves it as it was."""
        ...

    def hosts(self, uri: str) -> Sequence[str]:
        """Return the hosts that the target's client connects to, so that callers do not send the server where they may not."""
        return ()

    def letter_box(self, uri: str, options: Mapping[str, Any], feed: str) -> LetterBox:
        """Return the feed's dead letters; raise ``DEAD_LETTER_UNKNOWN`` where the target keeps none."""
        raise PenstockError("DEAD_LETTER_UNKNOWN", f"feed {feed}: a target of kind {self.name} has no dead letters")
