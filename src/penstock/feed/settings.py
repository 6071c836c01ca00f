"""Settings of a feed that do not depend on its target. Runs anywhere; imports no Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from penstock.feed.filters.rules import FilterSettings
from penstock.model.table_pattern import TablePatterns, pattern_problems

MIB = 1 << 20
OnRewrite = Literal["resnapshot", "keep", "pause-table"]
REWRITE_RULES: tuple[OnRewrite, ...] = ("resnapshot", "pause-table", "keep")
"""What may be done about a doubted table; of several feeds' wishes the one that stands first is done."""


@dataclass(frozen=True)
class FeedSettings:
    """How a feed moves.

    Attributes:
        flush_interval_s: the time between published checkpoints, while the feed keeps up.
        window_bytes_max: a window ends early where it would hold more than this, so that it ends within a flush interval.
        spans_per_table: into how many dispatchers a table is divided, at most one per upstream range; with more than one, file names
            carry the dispatcher.
        partitions: Spark tasks per window; 0 takes the session's parallelism.
        start_ts: 0 delivers the state at creation first, then every change; another ts delivers the changes after it, if the source still
            has them.
        atomicity: what the target keeps of transactions: ``none``, ``table`` (rows of one transaction of one table in one file) or
            ``transaction`` (an index by which readers apply source transactions whole, over all tables, in commit order).
        until_ts: everything up to this ts is delivered, and then the feed is finished; 0 for no end.
        bootstrap: how the state that a feed begins with is read: ``auto`` from the stream of a source that gives it there, otherwise by
            Spark tasks; ``job`` always by Spark tasks.
        bootstrap_tasks: how many of these tasks run at once.
        bootstrap_rows_per_second: how many rows they read per second at most, all together; 0 for as many as they can.
        on_stale_read: what happens where the history that a feed needs is gone: ``resnapshot`` delivers what differs between the target and
            a new snapshot, deletes included; ``fail`` stops the feed.
        on_rewrite: what happens to a table whose rows the log does not tell: ``resnapshot`` reads it again and delivers what differs,
            ``keep`` goes on with what the log tells, ``pause-table`` leaves the table out until an operator asks for it.
        on_rewrite_tables: the same for the tables that a pattern matches; the first pattern counts.
        recheck_interval_s: how often the tables of ``recheck_tables`` are read again without being in doubt; 0 for never.
        recheck_tables: patterns of tables that the server changes without logging it, such as children of cascading foreign keys.
        verify_interval_s: how often the server compares one key range of each table with the source, another one each time; 0 for never.
        verify_repair: whether a table that is found to differ is read again, and the difference delivered.
        filter: what is left out: kinds of events and of DDLs, columns, rows.
    """

    flush_interval_s: float = 5.0
    window_bytes_max: int = 512 * MIB
    spans_per_table: int = 1
    partitions: int = 0
    atomicity: Literal["none", "table", "transaction"] = "none"
    start_ts: int = 0
    until_ts: int = 0
    bootstrap: Literal["auto", "job"] = "auto"
    bootstrap_tasks: int = 4
    bootstrap_rows_per_second: int = 0
    on_stale_read: Literal["resnapshot", "fail"] = "resnapshot"
    on_rewrite: OnRewrite = "resnapshot"
    on_rewrite_tables: dict[str, str] = field(default_factory=dict)
    recheck_interval_s: float = 0.0
    recheck_tables: tuple[str, ...] = ()
    verify_interval_s: float = 0.0
    verify_repair: bool = False
    filter: FilterSettings = field(default_factory=FilterSettings)

    @property
    def trigger_interval_s(self) -> float:
        """Return how often a run asks for a window: more often than one is due, because a feed that is behind does not wait."""
        return max(0.05, self.flush_interval_s / 20)

    def rewrite_rule(self, schema: str, table: str) -> OnRewrite:
        """Return what happens to a table that is in doubt."""
        for pattern, rule in self.on_rewrite_tables.items():
            if TablePatterns((pattern,)).match(schema, table):
                return next(known for known in REWRITE_RULES if known == rule)
        return self.on_rewrite

    def problems(self) -> list[tuple[str, str]]:
        """Return every invalid field with what is wrong."""
        found = []
        if not 0.1 <= self.flush_interval_s <= 600:
            found.append(("flush-interval", "must be between 100 ms and 10 min"))
        if not MIB <= self.window_bytes_max <= 1 << 44:
            found.append(("window-bytes-max", "must be between 1 MiB and 16 TiB"))
        if not 1 <= self.spans_per_table <= 1000:
            found.append(("spans-per-table", "must be between 1 and 1000"))
        if not 0 <= self.partitions <= 10_000:
            found.append(("partitions", "must be between 0 (automatic) and 10000"))
        if self.start_ts < 0:
            found.append(("start-ts", "must not be negative"))
        found += [("until-ts", "must be 0 (no end) or above start-ts")] if self.until_ts and self.until_ts <= self.start_ts else []
        if not 1 <= self.bootstrap_tasks <= 1000:
            found.append(("bootstrap-tasks", "must be between 1 and 1000"))
        if self.bootstrap_rows_per_second < 0:
            found.append(("bootstrap-rows-per-second", "must not be negative"))
        found += self._rule_problems()
        if self.recheck_interval_s and not 1 <= self.recheck_interval_s <= 366 * 86_400:
            found.append(("recheck-interval", "must be 0 (never) or between 1 s and a year"))
        if bool(self.recheck_interval_s) != bool(self.recheck_tables):
            found.append(("recheck-tables", "and recheck-interval are given together"))
        if self.verify_interval_s and not 1 <= self.verify_interval_s <= 366 * 86_400:
            found.append(("verify-interval", "must be 0 (never) or between 1 s and a year"))
        if self.verify_repair and not self.verify_interval_s:
            found.append(("verify-repair", "needs a verify-interval; what is to be repaired now: penstock verify FEED --repair"))
        return found

    def _rule_problems(self) -> list[tuple[str, str]]:
        """Return what is wrong with rules for single tables: a pattern that can match no table would be a rule for nothing."""
        found = []
        for key, patterns in (("on-rewrite-tables", tuple(self.on_rewrite_tables)), ("recheck-tables", self.recheck_tables)):
            found += [(key, problem) for problem in pattern_problems(patterns)]
            found += [(key, f"a pattern is database.table, not {pattern}") for pattern in patterns if "." not in pattern]
        for pattern, rule in self.on_rewrite_tables.items():
            if rule not in REWRITE_RULES:
                found.append((f"on-rewrite-tables.{pattern}", f"must be one of {', '.join(REWRITE_RULES)}"))
        return found
