"""The error root.

Every error that Penstock raises on purpose is a ``PenstockError``: picklable, with a stable code of ``error_codes.py``, and a text that
begins with ``[CODE]``, because Spark strips exception types between executor and driver and only the text survives
(``PenstockError.from_text`` finds the code again). The kind says what the caller does:

========== =====================================================
TRANSIENT  retry with backoff
BLOCKED    an operator acts; the hint says how
INVALID    fix the request or the configuration
CORRUPT    stop; data is not what was written
FENCED     stop; another owner lives
BUG        crash; Penstock broke its own rule
========== =====================================================

An unknown code counts as BLOCKED. Runs anywhere.
"""

from __future__ import annotations

import re

from penstock.model.error_codes import CODES, ErrorKind

__all__ = ["CODES", "ErrorKind", "InvariantError", "PenstockError"]

_TEXT_CODE = re.compile(r"\[([A-Z][A-Z0-9_]+)\]([ \t]|$)", re.MULTILINE)


class PenstockError(Exception):
    """The root of all errors that Penstock raises on purpose."""

    def __init__(self, code: str, detail: str, hint: str | None = None) -> None:
        self.code = code
        self.detail = detail
        self._hint = hint
        super().__init__(code, detail, hint)

    @property
    def kind(self) -> ErrorKind:
        """Return what the caller does; an unknown code is BLOCKED."""
        entry = CODES.get(self.code)
        return entry.kind if entry else ErrorKind.BLOCKED

    @property
    def hint(self) -> str:
        """Return the way out, the error's own or its code's."""
        if self._hint is not None:
            return self._hint
        entry = CODES.get(self.code)
        return entry.hint if entry else "Report it with the log."

    def __str__(self) -> str:
        return f"[{self.code}] {self.detail}"

    @staticmethod
    def from_text(text: str) -> PenstockError:
        """Find the first error in a text that crossed a process boundary, such as a Spark failure.

        Spark puts conditions of its own, such as ``[STREAM_FAILED]``, before ours on the same line; they are passed over.
        """
        for match in _TEXT_CODE.finditer(text):
            if match.group(1) in CODES:
                return PenstockError(match.group(1), text[match.end() :].partition("\n")[0].strip())
        return PenstockError("FEED_FAILED", text.strip().splitlines()[0] if text.strip() else "no message")


class InvariantError(PenstockError):
    """An own rule is broken: code INTERNAL, kind BUG."""

    def __init__(self, detail: str) -> None:
        super().__init__("INTERNAL", detail)

    def __reduce__(self) -> tuple[type[InvariantError], tuple[str]]:
        return (InvariantError, (self.detail,))
