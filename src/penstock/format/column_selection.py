"""Column selectors: which columns of which tables reach the files.

A selector has patterns of ``schema.table`` and of column names, with ``*``, ``?`` and a leading ``!`` for exceptions among columns, where
the last pattern that matches decides. The first selector whose table pattern matches is used; tables that none matches keep all columns.
Invariant: the columns of the handle key are always kept, so that rows stay applicable. Runs on executors and beside the driver.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from penstock.model.table import TableSchema
from penstock.model.table_pattern import PATTERNS_MAX, pattern_problems


@dataclass(frozen=True, slots=True)
class ColumnSelector:
    """One rule: tables by pattern, and the columns that they keep."""

    matcher: tuple[str, ...]
    columns: tuple[str, ...]

    def matches(self, table: TableSchema) -> bool:
        """Return whether the rule is about this table."""
        return any(fnmatchcase(table.full_name.lower(), pattern.lower()) for pattern in self.matcher)

    def keeps(self, name: str) -> bool:
        """Return whether a column of this name is kept."""
        kept = False
        for pattern in self.columns:
            if fnmatchcase(name.lower(), pattern.removeprefix("!").lower()):
                kept = not pattern.startswith("!")
        return kept


def select_columns(table: TableSchema, selectors: Sequence[ColumnSelector]) -> TableSchema:
    """Return the table version with the columns that reach the files; the same object where all do."""
    rule = next((s for s in selectors if s.matches(table)), None)
    if rule is None:
        return table
    columns = tuple(c for c in table.columns if c in table.handle_columns or rule.keeps(c.name))
    if len(columns) == len(table.columns):
        return table
    return msgspec.structs.replace(table, columns=columns)


def read_selectors(raw: Any) -> tuple[ColumnSelector, ...]:
    """Read selectors from a configuration, or from JSON in a URI: a list of ``{matcher: [...], columns: [...]}``.

    ValueError says what is wrong.
    """
    if isinstance(raw, str):
        raw = json.loads(raw)
    if not isinstance(raw, Sequence) or isinstance(raw, str):
        raise ValueError("must be a list of {matcher, columns}")  # noqa: TRY004 - faults of a configuration are ValueErrors
    if len(raw) > PATTERNS_MAX:
        raise ValueError(f"must be at most {PATTERNS_MAX} rules")
    selectors = []
    for at, rule in enumerate(raw):
        if not isinstance(rule, Mapping) or set(rule) != {"matcher", "columns"}:
            raise ValueError(f"rule {at + 1} must have matcher and columns")
        lists = [[rule[k]] if isinstance(rule[k], str) else rule[k] for k in ("matcher", "columns")]
        if not all(isinstance(part, Sequence) and part and all(isinstance(p, str) for p in part) for part in lists):
            raise ValueError(f"rule {at + 1}: matcher and columns must be lists of patterns")
        for problem in (*pattern_problems(lists[0]), *pattern_problems(lists[1])):
            raise ValueError(f"rule {at + 1}: {problem}")
        selectors.append(ColumnSelector(tuple(lists[0]), tuple(lists[1])))
    return tuple(selectors)
