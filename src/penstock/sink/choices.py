"""What several kinds of targets leave to their operator in the same words. Runs anywhere."""

from __future__ import annotations

from enum import StrEnum


class Keyless(StrEnum):
    """What becomes of tables whose rows nothing names, where a target holds tables: equal rows are counted, or the table is refused."""

    COUNT = "count"
    REFUSE = "refuse"


class UnfitValues(StrEnum):
    """What becomes of a value that the target's type cannot hold."""

    REFUSE = "refuse"
    NULL = "null"
