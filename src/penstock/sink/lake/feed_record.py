"""What a lake says of its feed beside the tables: whose it is, and how far the feed has come over all tables.

The record is one small object. A window that it has is in every table, so an attempt that comes again touches none, also where a DDL behind
the window has dropped or renamed them since. Invariants: it never goes back; a lower epoch than its own is refused. Runs beside the driver.
"""

from __future__ import annotations

import msgspec

from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.target.owner_mark import OwnerMark
from penstock.target.storage import ObjectTarget

RECORD_PATH = ".penstock/lake.json"
_TRIES_MAX = 10


class Record(msgspec.Struct, frozen=True):
    """How far the feed has come: the window that all tables have, the last DDL behind it, and who wrote that."""

    window_ts: int = 0
    ddl_ts: int = 0
    epoch: int = 0
    ddls: tuple[str, ...] = ()
    """What was applied at the ts of the last DDL: one statement may come in several parts."""

    @classmethod
    def of(cls, content: bytes) -> Record:
        """Read the record."""
        try:
            return decoded(content, cls)
        except msgspec.MsgspecError as error:
            raise PenstockError("FILE_MALFORMED", f"{RECORD_PATH}: line 1: {error}") from error


class FeedRecord:
    """Owner and record of one lake. Not thread safe."""

    def __init__(self, target: ObjectTarget) -> None:
        self._target = target
        self.mark = OwnerMark(target)

    def owner(self) -> str:
        """Return whose the lake is; empty where it is nobody's."""
        owner = self.mark.find()
        return "" if owner is None else owner.feed

    def read(self, epoch: int) -> Record:
        """Return the record; raise where a later run than that of an epoch has written it."""
        content = self._target.find(RECORD_PATH)
        return Record() if content is None else self._checked(content, epoch)

    def has_ddl(self, epoch: int, ddl_ts: int, part: str) -> bool:
        """Return whether a part of a DDL was applied."""
        there = self.read(epoch)
        return there.ddl_ts > ddl_ts or (there.ddl_ts == ddl_ts and part in there.ddls)

    def advance(self, epoch: int, *, window_ts: int = 0, ddl_ts: int = 0, part: str = "") -> None:
        """Note that a window is in all tables, or a part of a DDL behind it."""
        for _ in range(_TRIES_MAX):
            found = self._target.find_tagged(RECORD_PATH)
            there = Record() if found is None else self._checked(found[0], epoch)
            parts = there.ddls if ddl_ts < there.ddl_ts or not part else (*(there.ddls if ddl_ts == there.ddl_ts else ()), part)
            after = Record(max(there.window_ts, window_ts), max(there.ddl_ts, ddl_ts), epoch, parts)
            if after == there:
                return
            try:
                self._target.put_over(RECORD_PATH, msgspec.json.encode(after), None if found is None else found[1])
            except FileExistsError:
                continue
            return
        raise PenstockError("SINK_UNAVAILABLE", f"{self._target.name}: {RECORD_PATH} never stood still")

    def _checked(self, content: bytes, epoch: int) -> Record:
        there = Record.of(content)
        if there.epoch > epoch:
            raise PenstockError("FENCED", f"{self._target.name}: epoch {there.epoch} has written since, this is {epoch}")
        return there
