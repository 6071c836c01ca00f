"""A callable of this process, for the contract suite of sinks: what a program rebuilds from what it was given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.model.batch import Op
from penstock.model.rows.typed_columns import OP_NAMES
from penstock.sink.callback.callbacks import registered
from penstock.sink.callback.changes import Changes
from penstock.sink.callback.kind import CallbackMaintainer
from penstock.sink.callback.sink import CallbackSink
from testing.targets.kit import Kit

_NAME = "kit"


@contextmanager
def callback_kit(root: Path) -> Iterator[Kit]:
    """Yield a callable that keeps everything as target."""
    given: list[Changes] = []
    spool = root / "spool"
    spool.mkdir()

    def changes(schema: str, table: str) -> list[tuple[int, int, int, str | None]]:
        rows = [row for one in given if one.table == f"{schema}.{table}" and not one.ddl for row in one.records.to_pylist()]
        return [(row["_commit_ts"], OP_NAMES.index(row["_op"]), row["id"], row["note"]) for row in rows]

    def state(schema: str, table: str) -> dict[int, str | None]:
        rows: dict[int, str | None] = {}
        for one in given:
            if one.table != f"{schema}.{table}":
                continue
            if one.ddl.startswith("TRUNCATE"):
                rows.clear()
            for row in one.records.to_pylist():
                if row["_op"] == OP_NAMES[Op.DELETE]:
                    rows.pop(row["id"], None)
                else:
                    rows[row["id"]] = row["note"]
        return rows

    with registered(_NAME, given.append) as found:
        yield Kit(
            lambda: CallbackSink(spool),
            lambda: CallbackMaintainer(_NAME, spool),
            state,
            changes,
            published_ts=lambda: found.checkpoint_ts,
            owned=False,
        )
