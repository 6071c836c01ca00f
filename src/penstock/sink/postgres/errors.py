"""What the errors of a PostgreSQL server mean to a feed, decided by SQLSTATE. Runs on executors and beside the driver.

Invariant: what is not surely permanent is tried again; no text has a password, nor a value of a row.
"""

from __future__ import annotations

import re

from penstock.model.errors import PenstockError
from penstock.settings.masking import mask_parts

_FULL = frozenset({"53100", "53200"})
_VALUES = frozenset({"23502", "23514", "23P01"})
_MADE_AT_ONCE = frozenset({"42P07", "42P06", "42710"})
"""Somebody else made the same at the same time, which IF NOT EXISTS does not see."""
_DUPLICATE, _FOREIGN = "23505", "23503"
_COPIED = re.compile(r"COPY .*, line \d+, column ([^:]+)")
_REFUSED = frozenset({"3D000", "3F000", "42501"})


def _place(error: BaseException) -> str:
    """Return the column or constraint that an error is about, where the server says so: never a value."""
    diag = getattr(error, "diag", None)
    copied = _COPIED.match(str(getattr(diag, "context", None) or ""))
    column = getattr(diag, "column_name", None) or (copied[1] if copied else None)
    constraint = getattr(diag, "constraint_name", None)
    return f" of column {column}" if column else f" by constraint {constraint}" if constraint else ""


def failure(error: BaseException, uri: str, shown: str) -> PenstockError:
    """Return an error of the driver as one of ours."""
    state = str(getattr(error, "sqlstate", None) or "")
    text = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    what = f"{shown}: {mask_parts(text, uri)}" + (f" ({state})" if state else "")
    if state in _FULL:
        return PenstockError("SINK_FULL", what)
    if state.startswith("22") or state in _VALUES:
        return PenstockError("SINK_VALUE_REFUSED", f"{shown}: the server refuses a value{_place(error)}, error {state}")
    if state == _DUPLICATE:
        return PenstockError("SINK_UNAVAILABLE", f"{shown}: another row holds a value of a unique key, error {state}")
    if state == _FOREIGN:
        return PenstockError("SINK_UNWRITABLE", f"{shown}: a foreign key refuses a change, error {state}")
    if state not in _MADE_AT_ONCE and (state in _REFUSED or state.startswith(("28", "42", "0A"))):
        return PenstockError("SINK_UNWRITABLE", what)
    return PenstockError("SINK_UNAVAILABLE", what)
