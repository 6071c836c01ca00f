"""Which dispatchers a feed has, and everything that a planner or a task must know to work for it.

The first assignment is made when the feed is created; DDLs change it (``feed/window/following.py``), and the meta database keeps which
dispatchers there are as of a ts. The division of a table in dispatchers is part of the file names, so a replay must find the same one, and
a table that is divided stays so. ``FeedContext`` travels to executors inside what a task is told, never through Spark options, which Spark
prints. Runs anywhere; imports no Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.feed.settings import FeedSettings
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.model.table_pattern import TablePatterns, whole_pattern
from penstock.sink.contract import DispatcherId
from penstock.source.contract import Upstream
from penstock.target.kind import SinkRun


class Dispatcher(msgspec.Struct, frozen=True):
    """One dispatcher: its id, the span it delivers, and the table's name after the last DDL that changed it.

    It lives from the checkpoint ``begin_ts`` on. With ``with_state`` the table had rows before it came into the feed: the dispatcher takes
    no part in windows until the state of its span is known, and the first that it takes part in delivers that state. With ``returns`` the
    target has rows of it from before, so that it delivers what differs from those.
    """

    id: DispatcherId
    span: Span
    schema: str
    table: str
    begin_ts: int = 0
    with_state: bool = False
    returns: bool = False
    stopped: str = ""
    """Why nothing of the table is delivered: an expression of its filter does not fit it, or failed. It comes back with its state."""


class FeedContext(msgspec.Struct, frozen=True):
    """What the planner and the tasks of one run of a feed need. Holds secrets: never print it."""

    feed: str
    epoch: int
    meta_url: str
    flight_location: str
    flight_token: str
    sink_uri: str
    sink_options: dict[str, str]
    dispatchers: tuple[Dispatcher, ...]
    """Those that the feed was created with; the meta database knows what became of them."""
    settings: FeedSettings
    snapshot_ts: int
    """The ts of the first window where the feed begins with a snapshot."""
    partitions: int
    tables: tuple[str, ...] = ()
    """The patterns of the feed's tables, those to come included; without any, the names of the first dispatchers' tables."""

    source: str = ""
    """Under which name the doubts about the source's tables are kept; empty where a table is never in doubt."""

    objects_options: dict[str, str] = {}
    """How tasks reach the event store's objects where those are on shared storage; see ``files/buckets.py``."""

    skip_until_ts: int = 0
    """Changes up to this ts are left out, because an operator reset the feed to it; DDLs are followed all the same."""

    resnapshot_from_ts: int | None = None
    """Where an operator asked for a new snapshot: the checkpoint by then. One that began there or later fulfils it."""

    rewound_from_ts: int = 0
    """The furthest checkpoint that an operator reset the feed back from: up to there the target may be published ahead of it."""

    target_from_ts: int = 0
    """The checkpoint at which the feed came to its target, which begins with the state: at that checkpoint it has nothing yet."""

    claimant: str = ""
    """How the target knows the feed; empty where nobody claimed it."""

    altered: bool = False
    """Whether the feed has another configuration from the end of the recorded window on: the run ends there."""

    def __repr__(self) -> str:
        return f"FeedContext(feed={self.feed!r}, epoch={self.epoch}, dispatchers={len(self.dispatchers)})"

    @property
    def sink_run(self) -> SinkRun:
        """Return on whose behalf the target is written to."""
        return SinkRun(self.feed, self.epoch, self.claimant)

    @property
    def span_ids(self) -> list[int]:
        """Return the ids of all spans that the feed reads."""
        return [d.span.span_id for d in self.dispatchers]

    @property
    def table_ids(self) -> list[int]:
        """Return the ids of all tables of the feed, each once."""
        return sorted({d.id.table_id for d in self.dispatchers})

    @property
    def patterns(self) -> TablePatterns:
        """Return which tables belong to the feed."""
        # Thousands of names, which only a feed without patterns needs.
        return TablePatterns(self.tables or tuple(sorted({whole_pattern(d.schema, d.table) for d in self.dispatchers})))


def assign_dispatchers(tables: Sequence[TableSchema], upstream: Upstream, spans_per_table: int) -> tuple[Dispatcher, ...]:
    """Divide each table in at most the given number of spans, where the upstream divides it."""
    found: list[Dispatcher] = []
    for table in sorted(tables, key=lambda t: t.table_id):
        whole = Span(table.table_id)
        spans = [whole] if spans_per_table == 1 else upstream.divide(whole, spans_per_table)
        found.extend(
            Dispatcher(DispatcherId(table.table_id, index, len(spans)), span, table.schema, table.table) for index, span in enumerate(spans)
        )
    return tuple(found)
