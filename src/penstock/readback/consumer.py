"""The storage consumer: applies a storage target to a database, step by step, and goes on where it stopped.

Steps are the schema files and the data files of all tables, ordered by version, schema file first, then date and number: a DDL
comes after all rows before it and before all rows after it. Each step is one transaction that also notes itself, so a step is never lost
and never applied twice, whatever stops the consumer. Invariants: only what an index names and only rows at or below the checkpoint are
applied, so that after a round the database is a transaction-consistent cut; a database takes one target only, and a table that this
replay did not make is left alone, unless the caller says that all of it may be replaced. Where the target has transaction indexes, whole
source transactions are applied in commit order instead (``transaction_order.py``). Runs wherever ``penstock replay`` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import polars as pl

from penstock.format.layout.paths import IndexPath, escape_name, unescape_name
from penstock.model.batch import Op
from penstock.model.ddl import DdlType
from penstock.model.errors import PenstockError
from penstock.model.table import COMMIT_TS, OP, Column, TableSchema
from penstock.model.table_pattern import TablePatterns
from penstock.readback.lineage import ids_by_name, origin_of, renumbered
from penstock.readback.net_rows import COUNT, TAKEN, alive, keyless_updates, last_of_each, net_copies, repeated, unexplained_updates
from penstock.readback.reader import StorageReader, TableVersion
from penstock.readback.replay import default_value, project
from penstock.readback.replay_database import ReplayDatabase, shown
from penstock.readback.transaction_order import TransactionReplay

_SOURCE = "source"
TRANSACTION_ROWS = 10_000
"""Source transactions are applied together until they have so many rows."""
_OCCUPIED_HINT = "Replay into another database, or replace what is there with --take-over."
_DROPS = frozenset({DdlType.DROP_TABLE, DdlType.DROP_SCHEMA})


@dataclass(frozen=True, slots=True)
class Round:
    """What one round did."""

    checkpoint_ts: int
    ddls: int
    files: int
    rows: int


@dataclass(frozen=True, slots=True)
class _Step:
    """A schema file (``version`` is set) or the files of one index."""

    order: tuple[int, int, str, str, str, str]
    schema: str
    table: str
    version: TableVersion | None = None
    index_path: str = ""
    index: IndexPath | None = None


class StorageConsumer:
    """Applies one target to one database. Not thread safe."""

    def __init__(
        self,
        reader: StorageReader,
        database: ReplayDatabase,
        patterns: Sequence[str] = (),
        *,
        take_over: bool = False,
        transaction_rows: int = TRANSACTION_ROWS,
    ) -> None:
        """Only tables that the patterns match are applied, all where there are none; ``take_over`` lets what is there be replaced."""
        self._transaction_rows = transaction_rows
        self._reader = reader
        self._database = database
        self._patterns = TablePatterns(tuple(patterns) or ("*.*",))
        self._takes_over = take_over
        database.prepare_notes()
        self._notes: dict[str, str] = {}

    def run_round(self, tell: Callable[[str], None] = lambda _: None) -> Round:
        """Look at the target again and apply everything new up to its checkpoint."""
        self._notes = self._database.notes()
        self._reader.refresh()
        self._claim(self._reader.identity())
        limit = self._reader.limit_ts()
        if self._reader.checkpoint_ts() is None:
            raise PenstockError("CHECKPOINT_MISSING", "the target has no metadata yet")
        self._reader.require_whole({item.removeprefix("file/") for item in self._notes if item.startswith("file/")})
        steps = self._steps(limit)
        transactions = self._transactions(steps, tell)
        borders = [step.order[0] for step in steps if step.version is not None]
        indexes = [(step.index, step.index_path) for step in steps if step.index is not None]
        ddls, files, rows = transactions.run(indexes, borders, tell)
        for step in steps:
            if step.version is not None:
                ddls += self._apply_step_version(step, steps, tell)
            elif step.index is not None and self._reader.partition_of(step.index):
                beside = [s for s in steps if s.index is not None and s.order[:5] == step.order[:5]]
                done_files, done_rows = self._apply_partitions(beside, limit) if step is beside[0] else (0, 0)
                files, rows = files + done_files, rows + done_rows
            else:
                done_files, done_rows = self._apply_files(step, limit)
                files, rows = files + done_files, rows + done_rows
                if done_files:
                    tell(f"{step.schema}.{step.table}: {done_rows} changes of {done_files} files")
        transactions.finish(limit)
        return Round(limit, ddls, files, rows)

    def _apply_step_version(self, step: _Step, steps: Sequence[_Step], tell: Callable[[str], None]) -> int:
        """Apply a schema file unless it has been; return how many were."""
        assert step.version is not None
        if step.version.type == DdlType.RENAME_TABLE:
            self._park([s for s in steps if s.version is not None and s.order[:2] == step.order[:2]])
        if not self._apply_version(step.schema, step.table, step.version):
            return 0
        tell(f"{step.schema}.{step.table}: version {step.version.table.version}")
        return 1

    def _transactions(self, steps: Sequence[_Step], tell: Callable[[str], None]) -> TransactionReplay:
        """Return what applies the windows whose transactions are known."""
        versions = deque(step for step in steps if step.version is not None)

        def apply_versions(ts: int) -> int:
            due = [versions.popleft() for _ in range(sum(step.order[0] <= ts for step in versions))]
            return sum(self._apply_step_version(step, steps, tell) for step in due)

        def target_of(schema: str, table: str) -> TableSchema | None:
            return self._structure(schema, table) if self._patterns.match(schema, table) else None

        means = (target_of, self._apply_rows, apply_versions, self._transaction_rows)
        return TransactionReplay(self._reader, self._database, self._notes, self._note, *means)

    def _claim(self, identity: str) -> None:
        """Make sure that the notes of the database are about this target."""
        known = self._notes.get(_SOURCE, identity)
        if known != identity:
            if not self._takes_over:
                raise PenstockError(
                    "SINK_OCCUPIED", f"the database holds a replay of {known}, and this target is {identity}", _OCCUPIED_HINT
                )
            with self._database.transaction():
                for item in list(self._notes):
                    self._note(item, None)
        if _SOURCE not in self._notes:
            with self._database.transaction():
                self._note(_SOURCE, identity)

    def _chosen_tables(self) -> list[tuple[str, str]]:
        """Return the tables that are applied; those that a replay must not touch are an error, not left out."""
        chosen = [name for name in self._reader.tables() if self._patterns.match(*name)]
        system = next((name for name in chosen if self._database.dialect.is_system(name[0])), None)
        if system is not None:
            text = f"{system[0]}.{system[1]} would go to a schema of the server itself"
            raise PenstockError("CONFIG_INVALID", text, "Choose tables with --table 'database.*'.")
        return chosen

    def _steps(self, limit: int) -> list[_Step]:
        steps = []
        for schema, table in self._chosen_tables():
            for version in self._reader.versions(schema, table):
                if version.type == DdlType.RENAME_TABLE:
                    self._check_origin(schema, table, version)
                # Renames come before what else happens at their ts: a name that they leave may be taken again by the same statement.
                order = (version.table.version, -1 if version.type == DdlType.RENAME_TABLE else 0, "", schema, table, "")
                steps.append(_Step(order, schema, table, version))
            for path, index in self._reader.index_files(schema, table):
                if index.dir.version <= limit:
                    order = (index.dir.version, 1, index.dir.date, schema, table, index.dispatcher)
                    steps.append(_Step(order, schema, table, index_path=path, index=index))
        for schema in self._reader.schemas():
            for file in self._reader.ddls(schema):
                if file.type == DdlType.DROP_SCHEMA:
                    version = TableVersion(TableSchema(0, schema, "", file.table_version, ()), file.query, file.type)
                    steps.append(_Step((file.table_version, 0, "", schema, "", ""), schema, "", version))
        return sorted(steps, key=lambda step: step.order)

    def _check_origin(self, schema: str, table: str, version: TableVersion) -> None:
        origin = origin_of(version.query, schema, table)
        if origin is not None and not self._patterns.match(*origin) and self._is_due(schema, table, version):
            text = f"{schema}.{table} was {origin[0]}.{origin[1]} before, which the patterns leave out"
            raise PenstockError("CONFIG_INVALID", text, "Give --table for both names.")

    def _apply_version(self, schema: str, table: str, version: TableVersion) -> bool:
        """Apply a schema file unless it has been; return whether it was."""
        item = _item("version", schema, table)
        if not self._is_due(schema, table, version):
            return False
        with self._database.transaction():
            self._restructure(schema, table, version)
            self._note(item, str(version.table.version))
        return True

    def _park(self, renames: list[_Step]) -> None:
        """Take the tables that one statement renames out of the way, before any of them gets its new name: names may change places."""
        due = [s for s in renames if s.version is not None and self._is_due(s.schema, s.table, s.version)]
        for step in due:
            assert step.version is not None
            origin = origin_of(step.version.query, step.schema, step.table)
            known = None if origin is None else self._structure(*origin)
            if origin is None or known is None or _item("parked", step.schema, step.table) in self._notes:
                continue
            spot = msgspec.structs.replace(known, schema=step.schema, table=self._database.spare_name(step.schema, step.table, "moving"))
            with self._database.transaction():
                # Noted first: where a DDL ends the transaction, a stop after it must find where the table went.
                self._note(_item("parked", step.schema, step.table), spot.to_json().decode())
                self._database.rename_table(origin, spot)
                self._note(_item("table", *origin), None)

    def _is_due(self, schema: str, table: str, version: TableVersion) -> bool:
        return int(self._notes.get(_item("version", schema, table), "-1")) < version.table.version

    def _restructure(self, schema: str, table: str, version: TableVersion) -> None:
        after, before = version.table, self._structure(schema, table)
        if version.type == DdlType.DROP_SCHEMA:
            prefix = _item("table", schema, "").removesuffix("%")
            for name in [k for k in self._notes if k.startswith(prefix)]:
                self._drop(schema, unescape_name(name.removeprefix(prefix)))
            return
        if version.type in _DROPS or not after.columns:
            self._drop(schema, table)
            return
        parked = self._notes.get(_item("parked", schema, table))
        if parked is not None:
            spot = TableSchema.from_json(parked)
            moved = msgspec.structs.replace(spot, schema=schema, table=table, version=after.version)
            if self._database.exists(spot.schema, spot.table):
                self._make_way(schema, table)
            self._database.rename_table((spot.schema, spot.table), moved)
            self._note(_item("parked", schema, table), None)
            # Column ids count from the first version of each name; a rename keeps names.
            before = renumbered(moved, ids_by_name(moved, after))
        if before is None:
            self._create(after)
        else:
            if version.type in {DdlType.TRUNCATE_TABLE, DdlType.CREATE_TABLE, DdlType.EXCHANGE_PARTITION}:
                self._database.clear_table(before)
            else:
                self._remove_partitions(before, after.version)
            if _shape(before) != _shape(after):
                known_ids = {c.id for c in before.columns}
                fresh = [c for c in after.columns if c.id not in known_ids]
                self._rebuild(before, after, self._defaults(fresh))
        self._note(_item("table", schema, table), after.to_json().decode())

    def _create(self, table: TableSchema) -> None:
        """Create a table that this replay has not made yet."""
        item = _item("making", table.schema, table.table)
        again = item in self._notes
        if not again:
            self._make_way(table.schema, table.table)
        # Noted first: where a DDL ends the transaction, a stop after it must find whose table it is.
        self._note(item, str(table.version))
        self._database.create_table(table, again=again)
        self._note(item, None)

    def _make_way(self, schema: str, table: str) -> None:
        """Make sure that a name is free for a table of this replay: one of its own that had left the feed is gone upstream."""
        if self._database.exists(schema, table):
            if not self._takes_over and self._structure(schema, table) is None:
                raise PenstockError("SINK_OCCUPIED", f"{schema}.{table} exists already, and this replay did not make it", _OCCUPIED_HINT)
            self._database.drop_table(schema, table)

    def _rebuild(self, before: TableSchema, after: TableSchema, defaults: dict[int, Any]) -> None:
        item = _item("spare", after.schema, after.table)
        noted = self._notes.get(item)
        new, old = noted.split() if noted else (self._database.spare_name(after.schema, after.table, p) for p in ("new", "old"))
        # Noted first, as above: what stands under these names after a stop is ours.
        self._note(item, f"{new} {old}")
        self._database.rebuild_table(before, after, defaults, (new, old))
        self._note(item, None)

    def _remove_partitions(self, table: TableSchema, version: int) -> None:
        """Delete the rows of the partitions that a DDL took away: what they last held, and did not give to another partition."""
        gone = self._reader.dropped_partitions(table.schema, table.table, version)
        if not gone:
            return
        parts = self._reader.partition_changes(table.schema, table.table, gone, version - 1)
        frames = [project(frame, directory, table) for directory, frame in parts]
        if frames:
            flipped = pl.when(alive()).then(int(Op.DELETE)).otherwise(int(Op.INSERT)).cast(pl.UInt8).alias(OP)
            changes = pl.concat(frames)
            keys = [c.field_name for c in table.handle_columns]
            if keys:
                held = last_of_each(changes, keys).filter(alive())
                self._database.apply_rows(table, held.clear(), held)
            else:
                self._apply_rows(table, changes.with_columns(flipped))

    def _defaults(self, columns: list[Column]) -> dict[int, Any]:
        """Return what rows that were there before these columns show in them."""
        if not columns:
            return {}
        row = pl.select(default_value(c).alias(c.field_name) for c in columns)
        return dict(zip((c.id for c in columns), shown(row, columns, self._database.dialect).row(0), strict=True))

    def _drop(self, schema: str, table: str) -> None:
        if self._structure(schema, table) is not None:
            self._database.drop_table(schema, table)
            self._note(_item("table", schema, table), None)

    def _apply_files(self, step: _Step, limit: int) -> tuple[int, int]:
        """Apply the new files of one index; return how many, and their rows."""
        files = rows = 0
        target = self._structure(step.schema, step.table)
        for version, fresh, note in self._fresh(step, limit):
            with self._database.transaction():
                if fresh.height and target is not None:
                    self._apply_rows(target, project(fresh, version, target))
                self._note(f"file/{step.index_path}", note)
            files, rows = files + 1, rows + fresh.height
        return files, rows

    def _apply_partitions(self, steps: list[_Step], limit: int) -> tuple[int, int]:
        """Apply the new files of several partitions of one table by commit ts: a row may have gone from one to another."""
        target = self._structure(steps[0].schema, steps[0].table)
        notes: dict[str, str] = {}
        frames, files = [], 0
        for step in steps:
            for version, fresh, note in self._fresh(step, limit):
                notes[f"file/{step.index_path}"] = note
                files += 1
                if fresh.height and target is not None:
                    frames.append(project(fresh, version, target))
        with self._database.transaction():
            if frames and target is not None:
                # Tombstones come first at one ts.
                self._apply_rows(target, pl.concat(frames).sort(pl.col(COMMIT_TS), alive(), maintain_order=True))
            for item, note in notes.items():
                self._note(item, note)
        return files, sum(frame.height for frame in frames)

    def _fresh(self, step: _Step, limit: int) -> Iterator[tuple[TableSchema, pl.DataFrame, str]]:
        """Yield version and rows of each file that is new, up to a ts, and the note that says that they are applied."""
        assert step.index is not None
        number, _, applied = self._notes.get(f"file/{step.index_path}", "0:0").partition(":")
        done, applied_ts = int(number), int(applied)
        for at, version, frame in self._reader.files_after(step.index_path, step.index, done):
            if not self._reader.stops_at_checkpoint:
                yield version, frame, f"{at}:0"
                continue
            # A file that was published after the checkpoint may hold rows beyond it; the next round takes the rest.
            fresh = frame.filter(pl.col(COMMIT_TS).is_between(applied_ts, limit, closed="right"))
            partial = bool((frame[COMMIT_TS] > limit).any())
            yield version, fresh, f"{done}:{limit}" if partial else f"{at}:0"
            if partial:
                return
            done, applied_ts = at, 0

    def _apply_rows(self, table: TableSchema, changes: pl.DataFrame) -> None:
        keys = [c.field_name for c in table.handle_columns]
        if keys:
            last = last_of_each(changes, keys)
            self._database.apply_rows(table, last.filter(alive()), last.filter(~alive()))
            return
        if unexplained_updates(changes):
            raise keyless_updates(table)
        columns = [c.field_name for c in table.columns]
        net = net_copies(changes, columns)
        gone, come = net.filter(pl.col(TAKEN) > 0), net.filter(pl.col(COUNT) > 0)
        self._database.delete_copies(table, gone.select(columns), gone[TAKEN])
        if come.height:
            self._database.insert_rows(table, repeated(come, columns))

    def _structure(self, schema: str, table: str) -> TableSchema | None:
        text = self._notes.get(_item("table", schema, table))
        return None if text is None else TableSchema.from_json(text)

    def _note(self, item: str, text: str | None) -> None:
        self._database.write_note(item, text)
        if text is None:
            self._notes.pop(item, None)
        else:
            self._notes[item] = text


def _item(kind: str, schema: str, table: str) -> str:
    """Return under which name something about a table is noted; two tables never have the same, in any collation that tells bytes apart."""
    names = (escape_name(name) for name in (schema, table))
    # Blanks at the end do not count in every one.
    return "/".join([kind, *(name[:-1] + "%20" if name.endswith(" ") else name for name in names)])


def _shape(table: TableSchema) -> tuple[tuple[Column, ...], ...]:
    """Return what of a version a database's table depends on; rows that are there have their initial defaults already."""
    columns = (table.columns, table.handle_columns)
    return tuple(tuple(msgspec.structs.replace(c, initial_default=msgspec.UNSET) for c in part) for part in columns)
