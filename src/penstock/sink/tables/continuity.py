"""Whether the target still has what was delivered to it: one that failed over may be an older copy, and books may be emptied by hand.

A target that has no books at all is another one, or was emptied. Each window that is whole leaves its end in the progress table before the
feed's progress moves. The next one must find it there, or a later one. Invariant: a window is whole only where each of its dispatchers is
in it, with all rows that it was given. Runs beside the driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.model.errors import PenstockError
from penstock.sink.contract import DispatcherResult
from penstock.sink.tables.books import FIRST_TOKEN, OWNER, TRANSACTIONS, WINDOW, Books, Progress
from penstock.sink.tables.database import Session
from penstock.target.kind import SinkRun


def foreign(session: Session, books: Books, run: SinkRun) -> PenstockError | None:
    """Return what is wrong where the target is not the one that the feed has claimed: it knows nothing of the feed, or is another one's."""
    row = books.read(session, "", OWNER) if run.claimant and books.exist(session) else None
    if not run.claimant or (row is not None and row.note == run.claimant):
        return None
    if row is not None and row.note:
        return PenstockError("SINK_OCCUPIED", f"{books.progress_name} belongs to feed {row.note!r}")
    if books.exist(session) and books.was_used(session):
        # Progress alone was emptied: tables may be compared.
        return None
    return PenstockError("SINK_LOST", f"{books.progress_name} of the target does not know feed {run.claimant.partition('/')[0]} any more")


def record_end(
    session: Session, books: Books, run: SinkRun, window: tuple[int, int], results: Sequence[DispatcherResult]
) -> PenstockError | None:
    """Record that a window is whole; return what is wrong where it is not, or where earlier ones are missing."""
    from_ts, to_ts = window
    problem = foreign(session, books, run)
    if problem is not None:
        return problem
    row = books.read(session, run.feed, WINDOW, lock=True)
    found = books.within_window(session, run.feed, to_ts)
    if row is not None and row.epoch > run.epoch:
        return PenstockError("FENCED", f"a run with epoch {row.epoch} wrote to the target, this one has {run.epoch}")
    lost = sorted(str(r.dispatcher) for r in results if r.rows and not _has_rows(found, r, to_ts))
    if lost:
        # The window comes again, and each dispatcher goes on from what the target says.
        return PenstockError("SINK_UNAVAILABLE", f"the target lacks rows of dispatchers {', '.join(lost[:5])} that it had taken")
    reached_ts = row.window_ts if row is not None else 0
    missing = reached_ts < from_ts and (row is not None or books.was_used(session))
    if missing and not _is_compared(found, results, to_ts):
        shown = f"was delivered up to {reached_ts}" if reached_ts else "does not say how far it is"
        return PenstockError("SINK_BEHIND", f"{books.progress_name} of the target {shown}, the feed has delivered up to {from_ts}")
    if row is None:
        books.begin(session, run.feed, [WINDOW])
        if not books.was_used(session):
            books.note_used(session)
    books.write(session, run.feed, WINDOW, Progress(max(reached_ts, to_ts), epoch=run.epoch))
    return None


def _has_rows(found: Mapping[str, Progress], result: DispatcherResult, to_ts: int) -> bool:
    name = str(result.dispatcher)
    for one in (name, TRANSACTIONS):
        if one in found and (found[one].window_ts > to_ts or found[one].rows >= result.rows):
            return True
    # Of a dispatcher with lanes, each counts for itself.
    return any(one.startswith(f"{name}/") for one in found)


def _is_compared(found: Mapping[str, Progress], results: Sequence[DispatcherResult], to_ts: int) -> bool:
    """Return whether all dispatchers of the feed compared their tables with the target in this window, which makes good what it lacks."""
    rows = [found.get(str(r.dispatcher), Progress()) for r in results]
    return bool(rows) and all(row.window_ts == to_ts and row.rows >= FIRST_TOKEN for row in rows)
