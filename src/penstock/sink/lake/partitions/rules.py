"""The setting by which tables of a lake are partitioned: which tables, by what.

``shop.orders: day(created), region; shop.*: bucket(16, id)``: rules with a semicolon between them, each a pattern of tables and what its
rows are divided by. Of the rules that match a table the first counts whose columns the table has. Invariant: a table that a rule names
without wildcards is never left without partitions in silence. Runs anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from penstock.model.errors import PenstockError
from penstock.model.table_pattern import TablePatterns, pattern_problems

_BUCKETS_MAX = 10_000
_TERM = re.compile(r"(?:(?P<by>[a-z]+)\(\s*(?:(?P<count>\d{1,9})\s*,\s*)?)?(?P<column>[^(),;]*[^(),;\s])\s*(?P<end>\)?)")
_WILDCARDS = re.compile(r"[*?\[]")


class Transform(StrEnum):
    """What of a column's value names a partition."""

    IDENTITY = "identity"
    YEAR = "year"
    MONTH = "month"
    DAY = "day"
    HOUR = "hour"
    BUCKET = "bucket"


class Term(NamedTuple):
    """A column of the upstream's table, and what of it counts."""

    transform: Transform
    column: str
    buckets: int = 0


class Rule(NamedTuple):
    """Tables by a pattern, and their terms."""

    pattern: str
    terms: tuple[Term, ...]


@lru_cache(maxsize=64)
def read_rules(text: str) -> tuple[Rule, ...]:
    """Return the rules of a text; raise ``ValueError`` that says what is wrong with it."""
    rules = []
    for part in filter(None, map(str.strip, text.split(";"))):
        pattern, colon, listed = part.partition(":")
        pattern, listed = (pattern.strip(), listed) if colon else ("*.*", part)
        if pattern.count(".") != 1 or pattern.startswith("!"):
            raise ValueError(f"{pattern!r} is no pattern of tables, as shop.orders or shop.*")
        terms = tuple(map(_term, _split(listed)))
        if len({(t.transform, t.column.lower()) for t in terms}) < len(terms):
            raise ValueError(f"{part!r} has something twice")
        rules.append(Rule(pattern, terms))
    if problems := pattern_problems([r.pattern for r in rules]):
        raise ValueError(problems[0])
    return tuple(rules)


def terms_for(rules: tuple[Rule, ...], schema: str, table: str, columns: Collection[str]) -> tuple[Term, ...]:
    """Return what a table with some columns is partitioned by. Raises where a rule that names it has a column that it lacks."""
    known = {name.lower() for name in columns}
    matching = [rule for rule in rules if TablePatterns((rule.pattern,)).match(schema, table)]
    found = next((rule for rule in matching if all(t.column.lower() in known for t in rule.terms)), None)
    named = next((rule for rule in matching if not _WILDCARDS.search(rule.pattern)), None)
    if found is None and named is not None:
        lacking = next(t.column for t in named.terms if t.column.lower() not in known)
        what = f"{schema}.{table} has no column {lacking!r}, by which partition-by divides it; change partition-by"
        raise PenstockError("SINK_DDL_REFUSED", what)
    return () if found is None else found.terms


def _split(listed: str) -> list[str]:
    """Return what stands between commas outside of parentheses."""
    parts, depth = [""], 0
    for char in listed:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def _term(text: str) -> Term:
    found = _TERM.fullmatch(text)
    if found is None or bool(found["by"]) != bool(found["end"]):
        raise ValueError(f"{text!r} is neither a column nor year(column), month, day, hour or bucket(number, column)")
    by = found["by"] or Transform.IDENTITY.value
    if by not in list(Transform):
        raise ValueError(f"{by!r} is none of year, month, day, hour, bucket")
    transform, count = Transform(by), int(found["count"] or 0)
    if (transform is Transform.BUCKET) != bool(found["count"]) or (count == 0 and transform is Transform.BUCKET) or count > _BUCKETS_MAX:
        raise ValueError(f"{text!r}: bucket, and nothing else, has a number between 1 and {_BUCKETS_MAX}")
    return Term(transform, found["column"], count)
