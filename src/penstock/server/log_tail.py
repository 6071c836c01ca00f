"""The last lines of a server's log, in memory, for whoever asks the API for them.

Invariants: so many entries at most, the oldest go first; numbers grow by one with each entry, so a reader that goes on from the last
number that it has sees all that is still here; credentials are masked before an entry is kept. Nothing here replaces where the log is
written to: a server that ended has none. Runs in the server.
"""

from __future__ import annotations

import collections
import logging
import threading
from typing import Any

import msgspec

from penstock.settings.masking import mask_text

ENTRIES_MAX = 5_000
_TEXT_CHARS_MAX = 4_000
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class LogEntry(msgspec.Struct, frozen=True):
    """One line of the log."""

    seq: int
    at_ms: int
    level: str
    logger: str
    message: str
    fields: dict[str, str]


class LogTail(logging.Handler):
    """Keeps what is logged. Thread safe."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        super().__init__()
        self._entries: collections.deque[LogEntry] = collections.deque(maxlen=entries_max)
        self._seq = 0
        self._keeping = threading.Lock()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record."""
        fields = {key: _text(value) for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info and record.exc_info[1] is not None:
            fields["exception"] = _text(f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}")
        message = _text(record.getMessage())
        with self._keeping:
            self._seq += 1
            self._entries.append(LogEntry(self._seq, int(record.created * 1000), record.levelname, record.name, message, fields))

    def read(self, after: int = 0, feed: str = "", level: int = 0, lines: int = ENTRIES_MAX) -> tuple[list[LogEntry], int]:
        """Return the newest entries behind a number that are of a feed, and of a level at least; and the number of the newest of all."""
        with self._keeping:
            entries, last = [entry for entry in self._entries if entry.seq > after], self._seq
        numbers = logging.getLevelNamesMapping()
        found = [entry for entry in entries if numbers.get(entry.level, 0) >= level and (not feed or _is_about(entry, feed))]
        return found[-lines:], last


def _is_about(entry: LogEntry, feed: str) -> bool:
    """Return whether an entry names a feed, or one of the group of that name."""
    name = entry.fields.get("feed", "")
    return name == feed or name.startswith(f"{feed}.")


def _text(value: Any) -> str:
    return mask_text(str(value))[:_TEXT_CHARS_MAX]


TAIL = LogTail()
"""That of this process: logging is one for the whole of it."""


def keep_tail() -> LogTail:
    """Keep what Penstock logs from now on. May be called more than once."""
    logging.getLogger("penstock").addHandler(TAIL)
    return TAIL
