"""Which tables the checkpoint of a feed does not cover, and its publication with their names.

A table is not covered while it is in doubt, and after that until the corrections are delivered. A table of which the log gave only the name
counts where the feed's patterns match it. Runs in the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.feed.window.assignment import Dispatcher, FeedContext
from penstock.feed.window.following import live_dispatchers
from penstock.meta.progress import ProgressDatabase
from penstock.meta.table_states import TableState
from penstock.model.table_pattern import TablePatterns
from penstock.sink.contract import SinkMaintainer

STOPPED = "stopped"
"""What is said of a table whose filter does not fit it, or failed."""
JOINING = "joining"
"""What is said of a table whose state is still to come into a target that the feed went over to."""
DELIVERING = "delivering"
"""What is said of a table whose corrections are in the event store and not yet in the target."""


def publish_committed(
    context: FeedContext, meta: ProgressDatabase, maintainer: SinkMaintainer, dispatchers: Sequence[Dispatcher] | None = None
) -> None:
    """Publish the committed checkpoint of a feed, and what it does not cover; ``dispatchers`` are the feed's, where they are known."""
    checkpoint_ts, known = meta.checkpoint_and_states(context.feed, context.source)
    states = [s for s in known if s.is_open or s.settled_ts > checkpoint_ts]
    # Asked only where it matters: there may be thousands of them.
    asked = bool(states) or context.settings.filter.is_sql or context.target_from_ts > 0
    mine = live_dispatchers(context, meta) if dispatchers is None and asked else dispatchers or ()
    table_ids = {d.id.table_id for d in mine} if states else set[int]()
    found = not_covered(states, table_ids, context.patterns, checkpoint_ts)
    found |= {f"{d.schema}.{d.table}": STOPPED for d in mine if d.stopped} if asked else {}
    if context.target_from_ts:
        # The target began with nothing, so a table that is not there yet is not empty.
        found |= {f"{d.schema}.{d.table}": JOINING for d in mine if d.with_state and not d.stopped}
    maintainer.publish_checkpoint(checkpoint_ts, found)


def not_covered(states: Sequence[TableState], table_ids: Iterable[int], patterns: TablePatterns, checkpoint_ts: int) -> dict[str, str]:
    """Return the tables of a feed that a checkpoint does not cover, by name, each with its state."""
    mine, found = set(table_ids), {}
    for state in states:
        if state.table_id in mine or (state.table_id == 0 and patterns.match(state.schema, state.table)):
            shown = state.state.value if state.is_open else DELIVERING if state.settled_ts > checkpoint_ts else ""
            if shown:
                found[f"{state.schema}.{state.table}"] = shown
    return found
