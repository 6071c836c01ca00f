"""The ``metadata`` object: the checkpoint of the whole target as compact JSON, and the tables for which it does not hold.

Invariant: every change with a commit ts at or below the checkpoint is in the target, but for tables that are named as not covered. Runs
beside the driver and wherever a target is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from penstock.model.errors import PenstockError
from penstock.model.timestamp import TS_MAX

_KEY = "checkpoint-ts"
_NOT_COVERED = "not-covered"


def render_checkpoint(checkpoint_ts: int, not_covered: Mapping[str, str] | None = None) -> bytes:
    """Return the content of ``metadata``; tables that the checkpoint does not cover are named, each with its state."""
    content: dict[str, object] = {_KEY: checkpoint_ts}
    if not_covered:
        content[_NOT_COVERED] = dict(sorted(not_covered.items()))
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def parse_checkpoint(content: bytes) -> int:
    """Return the checkpoint ts that ``metadata`` holds, however its JSON is spaced."""
    try:
        value = json.loads(content)[_KEY]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PenstockError("FILE_MALFORMED", f"metadata: line 1: no {_KEY!r} in it") from error
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= TS_MAX:
        raise PenstockError("FILE_MALFORMED", f"metadata: line 1: {_KEY!r} is not a ts")
    return value
