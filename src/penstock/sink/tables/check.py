"""What a database must allow for a feed to deliver there: the doctor's part about targets of tables. Runs wherever someone asks."""

from __future__ import annotations

from penstock.model.errors import PenstockError
from penstock.model.finding import Finding
from penstock.settings.masking import mask_text
from penstock.sink.tables.database import Database, Patience
from penstock.sink.tables.maintainer import TableMaintainer
from penstock.sink.tables.settings import TableSinkSettings
from penstock.target.kind import NO_RUN

_ONCE = Patience(attempts_max=1)


def check_tables(database: Database, settings: TableSinkSettings, feed: str | None) -> list[Finding]:
    """Return what was found; ``feed`` is the name of the feed that is meant to deliver there. Leaves nothing behind but a schema."""
    maintainer = TableMaintainer(database, settings, NO_RUN, patience=_ONCE)
    try:
        owner = maintainer.owner()
    except PenstockError as error:
        return [Finding("target: reachable", False, mask_text(f"[{error.code}] {error.detail}"), error.hint)]
    found = [Finding("target: reachable", True, database.shown, "it answers, and the user may log in")]
    mine = owner is None or (feed is not None and owner.partition("/")[0] == feed)
    found.append(Finding("target: free", mine, "nobody's" if owner is None else f"of feed {owner!r}", "nobody's, or the feed's own"))
    try:
        maintainer.probe()
    except PenstockError as error:
        found.append(Finding("target: writable", False, mask_text(f"[{error.code}] {error.detail}"), error.hint))
    else:
        found.append(Finding("target: writable", True, "a table was made, written to and dropped", "rights to make, write and drop tables"))
    return found
