"""How servers that share a meta database share its feeds: who should take one, who should give one up.

Pure decisions from what the meta database says; the lease decides who may. Load is the number of feeds. Invariants: all servers compute
the same share; a feed that the others leave alone is taken by any server after a while, so no wrong number keeps a feed from running;
feeds move only where one server has at least two more than another, so they never go to and fro. The feeds of a source with one log stay
together, because one server reads a log: the one that an operator chose, or that has most of them, takes all, and the others stand by.
Runs in the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec

from penstock.meta.records import FeedRecord, ReachedState, RequestedState, ServerRecord, ServerState

LEFT = frozenset({ReachedState.FAILED, ReachedState.FINISHED})
"""What a feed that shall run may have reached so that no server takes it."""


class Share(msgspec.Struct, frozen=True):
    """What one server has and what it should have."""

    mine: int
    fair: int
    """As many feeds as a server takes by itself: all of them divided by the servers that take feeds, rounded up."""
    least: int
    """How many the server with the fewest has."""

    @property
    def wants_more(self) -> bool:
        """Return whether this server takes a feed that nobody has."""
        return self.mine < self.fair

    @property
    def gives_away(self) -> bool:
        """Return whether this server hands a feed over."""
        return self.mine > 0 and self.mine >= self.least + 2


def is_meant_for_another(feed: FeedRecord, owner: str, servers: Sequence[ServerRecord]) -> bool:
    """Return whether an operator chose another server for a feed, which is there to take it."""
    wanted = feed.wanted_owner
    return wanted not in {"", owner} and any(s.owner == wanted and s.state is ServerState.ACTIVE for s in servers)


def share_of(
    owner: str, draining: bool, servers: Sequence[ServerRecord], feeds: Sequence[FeedRecord], kept: Collection[str], together: bool = False
) -> Share:
    """Return the share of a server in feeds that all of these servers could run; ``kept`` are those that it runs now.

    ``together`` says that one server shall have them all.
    """
    owned = Counter(feed.owner for feed in feeds if feed.owner and feed.name not in kept)
    counts = {s.owner: owned[s.owner] for s in servers if s.state is ServerState.ACTIVE and s.owner != owner}
    mine = len(kept)
    if draining:
        return Share(mine, 0, min(counts.values(), default=mine))
    wanted = sum(feed.requested_state is RequestedState.RUNNING and feed.reached_state not in LEFT for feed in feeds)
    if together:
        chosen = next((feed.wanted_owner for feed in feeds if feed.wanted_owner in {owner, *counts}), "")
        # Most feeds first, then the first name: every server comes to the same answer.
        leads = chosen == owner if chosen else all((mine, other) >= (count, owner) for other, count in counts.items())
        return Share(mine, wanted if leads else 0, mine if leads else mine - 2)
    return Share(mine, -(-wanted // (len(counts) + 1)), min([*counts.values(), mine]))
