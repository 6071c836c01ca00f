"""What a feed leaves out: kinds of events and of DDLs, columns, and rows by Spark SQL. Values as a user writes them.

Of several rules the first counts whose patterns match a table. Rows are chosen first; the kinds of events are those of what is left: an
update that enters a ``where`` is an insert there, one that leaves it a delete. Whether an expression can be used only Spark knows
(``analysis.py``). Runs anywhere; imports no Spark.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.format.column_selection import ColumnSelector, select_columns
from penstock.model.batch import Op
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.table import TableSchema
from penstock.model.table_pattern import TablePatterns, pattern_problems

EVENT_OPS: dict[str, tuple[Op, ...]] = {"insert": (Op.INSERT,), "update": (Op.UPDATE, Op.BEFORE), "delete": (Op.DELETE,)}
DDL_KINDS = {kind.name.lower().replace("_", "-"): kind for kind in DdlType if kind is not DdlType.NONE}
RULES_MAX = 1_000
_EXPRESSION_CHARS_MAX = 20_000


@dataclass(frozen=True)
class FilterRule:
    """What is left out of some tables.

    Attributes:
        tables: patterns of tables, with ``!`` for exceptions.
        where: a condition in Spark SQL over the columns of the table; rows for which it is not true are left out.
        select: the columns that the target gets, a list of expressions in Spark SQL; empty for all as they are.
        join: one or more joins with static tables of the server, in Spark SQL, that stand between the table and the condition.
        key: the columns of ``select`` that name a row in the target; empty for those of the table.
        columns: patterns of columns that are kept, with ``!`` for exceptions, without Spark; those of the key always are.
        events: kinds of events that are kept; empty for those of the feed.
    """

    tables: tuple[str, ...]
    where: str = ""
    select: str = ""
    join: str = ""
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    events: tuple[str, ...] = ()

    @property
    def is_sql(self) -> bool:
        """Return whether rows of the tables go through Spark."""
        return bool(self.where or self.select or self.join)

    def problems(self) -> list[tuple[str, str]]:
        """Return every invalid field with what is wrong."""
        found = [] if self.tables else [("tables", "must name at least one table")]
        found += [("tables", problem) for problem in pattern_problems(self.tables)]
        found += [("columns", problem) for problem in pattern_problems(self.columns)]
        found += _event_problems(self.events)
        if self.columns and self.select:
            found.append(("columns", "and select both say which columns there are; give one of them"))
        if self.key and not self.select:
            found.append(("key", "names columns of select, which is missing"))
        for name in ("where", "select", "join"):
            if len(getattr(self, name)) > _EXPRESSION_CHARS_MAX:
                found.append((name, f"must be at most {_EXPRESSION_CHARS_MAX} characters"))
        return found


@dataclass(frozen=True)
class FilterSettings:
    """What a feed leaves out.

    Attributes:
        events: kinds of events that are kept (``insert``, ``update``, ``delete``); empty for all.
        ddl: kinds of DDLs that the target is told of, or with ``!`` of which it is not; empty for all. Files always follow the columns.
        rules: what is left out of which tables; the first rule that matches a table counts.
    """

    events: tuple[str, ...] = ()
    ddl: tuple[str, ...] = ()
    rules: tuple[FilterRule, ...] = ()

    @property
    def is_sql(self) -> bool:
        """Return whether rows of any table go through Spark."""
        return any(rule.is_sql for rule in self.rules)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is left out."""
        return not (self.events or self.ddl or self.rules)

    def rule(self, schema: str, table: str) -> FilterRule | None:
        """Return the rule of a table, None where it has none."""
        return next((rule for rule in self.rules if TablePatterns(rule.tables).match(schema, table)), None)

    def sql_rule(self, schema: str, table: str) -> FilterRule | None:
        """Return the rule of a table whose rows go through Spark, None where they do not."""
        rule = self.rule(schema, table)
        return rule if rule is not None and rule.is_sql else None

    def columns_shown(self, table: TableSchema) -> TableSchema:
        """Return a table version with the columns that its rule keeps; the same object where all are."""
        rule = self.rule(table.schema, table.table)
        if rule is None or not rule.columns:
            return table
        return select_columns(table, [ColumnSelector(("*",), rule.columns)])

    def ops(self, schema: str, table: str) -> frozenset[Op] | None:
        """Return the operations that are kept of a table, None where all are."""
        rule = self.rule(schema, table)
        kinds = rule.events if rule is not None and rule.events else self.events
        return frozenset(op for kind in kinds for op in EVENT_OPS[kind]) if kinds else None

    def tells(self, ddl: DdlEvent) -> bool:
        """Return whether the target is told of a DDL."""
        name = ddl.type.name.lower().replace("_", "-")
        if not self.ddl or f"!{name}" in self.ddl:
            return not self.ddl
        return name in self.ddl or all(kind.startswith("!") for kind in self.ddl)

    def not_a_copy(self, schema: str, table: str) -> str:
        """Return why the target does not hold a table as the upstream does; empty where it does."""
        rule = self.rule(schema, table)
        if rule is not None and rule.is_sql:
            given = ", ".join(name for name in ("where", "select", "join") if getattr(rule, name))
            return f"its rows are filtered by Spark SQL ({given})"
        if rule is not None and rule.columns:
            return "some of its columns are left out"
        if self.ops(schema, table) is not None:
            return "some kinds of its events are left out"
        return "the target is not told of every DDL" if self.ddl else ""

    def problems(self) -> list[tuple[str, str]]:
        """Return every invalid field with what is wrong."""
        found = _event_problems(self.events)
        found += [
            ("ddl", f"{kind!r} is none of {', '.join(DDL_KINDS)}, with or without !")
            for kind in self.ddl
            if kind.removeprefix("!") not in DDL_KINDS
        ]
        if len({kind.startswith("!") for kind in self.ddl}) > 1:
            found.append(("ddl", "must be kinds that are told, or kinds with ! that are not, but no mixture"))
        if len(self.rules) > RULES_MAX:
            found.append(("rules", f"must be at most {RULES_MAX}"))
        return found


def _event_problems(events: tuple[str, ...]) -> list[tuple[str, str]]:
    return [("events", f"{kind!r} is none of {', '.join(EVENT_OPS)}") for kind in events if kind not in EVENT_OPS]
