"""The meta database as whoever plans and commits windows needs it: recorded windows, progress, dispatchers.

Every method is one transaction, and safe from any thread and any process. Methods that take an ``epoch`` are fenced: they raise
``FENCED`` and change nothing once another owner holds the lease, or it was released, or the feed was removed. Runs wherever a window is
planned or committed, where it is opened anew from its URL, and in the server, as a part of ``database.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Self

import sqlalchemy as sa

from penstock.meta.engine import MetaEngine, MetaSettings
from penstock.meta.records import Counted, DispatcherRecord, FeedProgress, PendingWindow, RangeProgress, TableProgress
from penstock.meta.table_states import TableState, states_of
from penstock.meta.tables import feed, resnapshot
from penstock.meta.transactions import dispatchers, ownership, reports, windows
from penstock.meta.transactions.windows import Positions
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import PenstockError
from penstock.model.failpoints import reach
from penstock.settings.loader import did_you_mean

_NAMES_COMPARED_MAX = 2_000


class ProgressDatabase:
    """One open meta database. Create as many as there are processes; threads share one."""

    def __init__(self, url: str, clock: Clock | None = None, settings: MetaSettings | None = None) -> None:
        self._clock = clock or SystemClock()
        self._engine = MetaEngine(url, settings or MetaSettings())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._engine.shown_url})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Called once, by the owner."""
        self._engine.close()

    def begin_window(self, name: str, epoch: int, from_ts: int, to_ts: int, plan_json: str) -> PendingWindow:
        """Record a window before its first file is written. Fenced.

        Where a window that starts at ``from_ts`` is already recorded, that one is returned, whatever the arguments say, so that a replay
        has the same end and plan. Raises ``WINDOW_OUT_OF_ORDER`` unless ``from_ts`` is the feed's checkpoint.
        """
        wanted = PendingWindow(name, from_ts, to_ts, plan_json, epoch, self._clock.now_ms())
        reach("window-record:before")
        with self._engine.write() as connection:
            recorded = windows.begin(connection, wanted)
        reach("window-record:after")
        return recorded

    def begin_resnapshot(self, name: str, epoch: int, from_ts: int, to_ts: int, plan_json: str) -> PendingWindow:
        """Record a window that takes the place of lost history, also in the place of a recorded one that cannot be delivered. Fenced."""
        wanted = PendingWindow(name, from_ts, to_ts, plan_json, epoch, self._clock.now_ms())
        with self._engine.write() as connection:
            return windows.begin_resnapshot(connection, wanted)

    def amend_window(self, name: str, epoch: int, from_ts: int, to_ts: int, plan_json: str) -> PendingWindow:
        """Change what is recorded of a window that is under way, not its ends. Fenced."""
        with self._engine.write() as connection:
            return windows.amend(connection, PendingWindow(name, from_ts, to_ts, plan_json, epoch))

    def resnapshots(self, name: str, since_ts: int = 0) -> int:
        """Return how often a feed began to deliver what differed from a new snapshot, from a checkpoint at or above a ts."""
        mine = (resnapshot.c.feed == name, resnapshot.c.from_ts >= since_ts)
        with self._engine.read() as connection:
            return int(connection.execute(sa.select(sa.func.count()).where(*mine)).scalar_one())

    def pending_window(self, name: str) -> PendingWindow | None:
        """Return the recorded window of a feed, or None."""
        with self._engine.read() as connection:
            return windows.pending(connection, name)

    def owned_window(self, name: str, epoch: int) -> PendingWindow | None:
        """Return the recorded window of a feed, or None; raise ``FENCED`` unless this epoch is the feed's current one."""
        with self._engine.read() as connection:
            ownership.check(connection, name, epoch)
            return windows.pending(connection, name)

    def commit_window(
        self,
        name: str,
        epoch: int,
        from_ts: int,
        to_ts: int,
        positions: Positions,
        rows: int = 0,
        nbytes: int = 0,
        files: int = 0,
        followers: Sequence[DispatcherRecord] | None = None,
        counts: Mapping[str, Counted] | None = None,
    ) -> bool:
        """Make a window's end the checkpoint, with the positions of its dispatchers, in one transaction. Fenced.

        ``followers`` are the feed's dispatchers from the window's end on, where a DDL there changed them; ``counts`` what each did.
        Returns False, and changes nothing, where the checkpoint is already there. Raises ``WINDOW_OUT_OF_ORDER`` unless the window is the
        recorded one. Call it only after everything of the window is durable in the target.
        """
        window = PendingWindow(name, from_ts, to_ts, "", epoch)
        reach("progress:before")
        with self._engine.write() as connection:
            now_ms = self._clock.now_ms()
            total = {"rows": rows, "nbytes": nbytes, "files": files, "now_ms": now_ms}
            moved = windows.commit(connection, window, positions, **total, followers=followers, counts=counts)
        reach("progress:after")
        return moved

    def add_sink_report(self, name: str, epoch: int, add: Callable[[str], str]) -> None:
        """Add what a window's tasks counted to the feed's report, a text of the sink's own, empty at first. Fenced."""
        with self._engine.write() as connection:
            reports.update(connection, name, epoch, add)

    def sink_reports(self) -> dict[str, str]:
        """Return the reports of all feeds that have one."""
        with self._engine.read() as connection:
            return reports.read_all(connection)

    def progress(self, name: str) -> FeedProgress:
        """Return what a feed delivered, from one state of the database; raise ``FEED_UNKNOWN``."""
        with self._engine.read() as connection:
            found = windows.read_progress(connection, name)
            if found is None:
                raise unknown_feed(connection, name)
        return found

    def table_progress(self, name: str | None = None) -> list[TableProgress]:
        """Return what was delivered of the tables that feeds have now: of all feeds, or of one."""
        with self._engine.read() as connection:
            return windows.read_tables(connection, name)

    def range_progress(self, name: str) -> list[RangeProgress]:
        """Return what was delivered of each range of a feed's tables."""
        with self._engine.read() as connection:
            return windows.read_ranges(connection, name)

    def checkpoint_ts(self, name: str) -> int:
        """Return up to which ts a feed's windows are committed; raise ``FEED_UNKNOWN``."""
        return self.checkpoint_and_states(name, "")[0]

    def checkpoint_and_states(self, name: str, source: str) -> tuple[int, list[TableState]]:
        """Return up to which ts a feed's windows are committed, and the tables of a source that were ever in doubt, if one is named."""
        with self._engine.read() as connection:
            found = connection.execute(sa.select(feed.c.checkpoint_ts).where(feed.c.name == name)).scalar()
            if found is None:
                raise unknown_feed(connection, name)
            return int(found), states_of(connection, source) if source else []

    def positions(self, name: str, of: Collection[str]) -> dict[str, dict[str, int]]:
        """Return where some dispatchers of a feed stand, as ``progress`` tells of all of them."""
        with self._engine.read() as connection:
            return windows.read_positions(connection, name, of)

    def dispatchers(self, name: str, ts: int | None = None) -> list[DispatcherRecord] | None:
        """Return the dispatchers of a feed while its checkpoint is this ts, or now; None where they were never written down."""
        with self._engine.read() as connection:
            if ts is None:
                ts = connection.execute(sa.select(feed.c.checkpoint_ts).where(feed.c.name == name)).scalar()
            found = dispatchers.live_at(connection, name, ts or 0)
            return found if found or dispatchers.known(connection, name) else None

    def table_states(self, source: str) -> list[TableState]:
        """Return every table of a source that was ever in doubt; ``meta/table_states.py`` writes them."""
        with self._engine.read() as connection:
            return states_of(connection, source)

    def dispatchers_mark(self, name: str) -> tuple[int, ...]:
        """Return numbers that change whenever dispatchers of a feed begin or end: cheap to ask for, however many there are."""
        with self._engine.read() as connection:
            return dispatchers.marks(connection, name).get(name, ())

    def dispatcher_marks(self) -> dict[str, tuple[int, ...]]:
        """Return the marks of all feeds that have dispatchers."""
        with self._engine.read() as connection:
            return dispatchers.marks(connection)

    def replace_first_dispatchers(self, name: str, epoch: int, first: Sequence[DispatcherRecord]) -> None:
        """Change the dispatchers that a feed begins with, before its first window is recorded. Fenced."""
        with self._engine.write() as connection:
            row = ownership.fenced_feed(connection, name, epoch)
            if row.checkpoint_ts != 0 or windows.pending(connection, name) is not None:
                raise PenstockError("WINDOW_OUT_OF_ORDER", f"feed {name} has begun: its first dispatchers stay")
            dispatchers.replace_first(connection, name, first)

    def check_owner(self, name: str, epoch: int) -> None:
        """Raise ``FENCED`` unless this epoch is the feed's current one. What it says may have changed a moment later."""
        with self._engine.read() as connection:
            ownership.check(connection, name, epoch)


def unknown_feed(connection: sa.Connection, name: str) -> PenstockError:
    """Return what says that there is no such feed, and which has nearly its name."""
    names = connection.execute(sa.select(feed.c.name).limit(_NAMES_COMPARED_MAX)).scalars()
    return PenstockError("FEED_UNKNOWN", f"feed {name} does not exist{did_you_mean(name, names)}")
