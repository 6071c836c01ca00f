"""Places of a binlog: file and offset, and the GTID set where the server has one.

The text of a place is ``file:offset#server`` or ``file:offset@gtids``; MariaDB's and MySQL's sets look different, so the text says which
kind of server wrote it. Places with GTIDs are compared by them, since file names differ between servers. A place without them means
something to one server only, which it names. Runs anywhere.
"""

from __future__ import annotations

import re

import msgspec

from penstock.model.errors import PenstockError
from penstock.source.mysql.gtid import Gtids, MariadbGtids, MysqlGtids

_TEXT = re.compile(r"^([^:@]*):(\d+)(?:#([^@]*)|@(.*))?$", re.DOTALL)
_NUMBER = re.compile(r"\.(\d+)$")


class LogPlace(msgspec.Struct, frozen=True):
    """A place between two events."""

    file: str
    offset: int
    gtids: Gtids | None = None
    server: str = ""
    """Which server's file it is, where there are no GTIDs; empty where that is not known."""

    @classmethod
    def parse(cls, text: str) -> LogPlace:
        """Read what ``str`` wrote."""
        match = _TEXT.match(text)
        if match is None:
            raise PenstockError("CONFIG_INVALID", "a binlog position is file:offset or file:offset@gtids")
        file, offset, server, gtids = match.groups()
        if gtids is None:
            return cls(file, int(offset), server=server or "")
        return cls(file, int(offset), MysqlGtids.parse(gtids) if ":" in gtids else MariadbGtids.parse(gtids))

    def __str__(self) -> str:
        behind = f"@{self.gtids}" if self.gtids is not None else f"#{self.server}" if self.server else ""
        return f"{self.file}:{self.offset}{behind}"

    def without_gtids(self) -> LogPlace:
        """Return file and offset alone, which one server understands."""
        return LogPlace(self.file, self.offset)

    def reached(self, end: LogPlace) -> bool:
        """Return whether everything before ``end`` stands before this place too."""
        if isinstance(self.gtids, MariadbGtids) and isinstance(end.gtids, MariadbGtids):
            return self.gtids.reached(end.gtids)
        if isinstance(self.gtids, MysqlGtids) and isinstance(end.gtids, MysqlGtids):
            return self.gtids.reached(end.gtids)
        # A MySQL server that has executed nothing writes an empty set, which looks like MariaDB's.
        if end.gtids is not None and not str(end.gtids):
            return True
        return (_number(self.file), self.offset) >= (_number(end.file), end.offset)


def _number(file: str) -> int:
    match = _NUMBER.search(file)
    return int(match.group(1)) if match else 0
