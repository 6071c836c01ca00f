"""What a source has: its tables, how large they are about, and what will happen to each. Runs wherever someone asks.

A source's doctor makes it of the findings that it has of a table, so the two say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from penstock.model.finding import Finding


class SurveyedTable(msgspec.Struct, frozen=True):
    """One table. ``rows`` and ``nbytes`` are estimates of the server, None where it has none; ``notes`` say what is not as it should be."""

    schema: str
    table: str
    key: tuple[str, ...]
    captured: bool
    notes: tuple[str, ...] = ()
    rows: int | None = None
    nbytes: int | None = None


def surveyed(
    schema: str, table: str, key: Sequence[str], findings: Iterable[Finding], size: tuple[int | None, int | None] = (None, None)
) -> SurveyedTable:
    """Return a table with what was found of it."""
    wrong = [finding for finding in findings if not finding.ok]
    return SurveyedTable(schema, table, tuple(key), not any(f.blocks for f in wrong), tuple(f.found for f in wrong), *size)
