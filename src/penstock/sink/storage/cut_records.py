"""Records of the cuts that the clock made, so that a replay cuts at the same places.

A window usually ends within the flush interval; then rows alone decide its files and nothing is recorded. In a longer one a dispatcher's
file is also cut when its time has come. Before that file is published, the row after which it was cut is recorded in an object of its own,
created once: ``.penstock/cuts/<dispatcher>/<start of the window>/<number of the file in the window>``. Every later attempt of the window
reads the records first, cuts there, and lets its own clock rest until it is past them. Where two attempts run at once, the one whose cut is
not the recorded one stops with CUT_CONFLICT and is tried again. A record whose file turns out to be published with other bytes is replaced
by one that says so: that file was cut by its rows. Records of earlier windows are deleted on the way. Runs on executors.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from penstock.format.layout.paths import OWNER_DIR
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.failpoints import reach
from penstock.sink.contract import DispatcherId, DispatcherWork
from penstock.target.storage import ObjectTarget

CUTS_DIR = f"{OWNER_DIR}/cuts"


class CutRecord(msgspec.Struct, frozen=True, order=True):
    """File number ``file`` (from 0) of a window ends after this many of the dispatcher's rows; 0: where its rows say, not the clock."""

    rows: int
    file: int


@dataclass(frozen=True, slots=True)
class _Path:
    path: str
    dispatcher: str
    from_ts: int
    file: int


class CutRecords:
    """The records of a target, read once per task. Thread safe."""

    def __init__(self, target: ObjectTarget) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._listed: list[_Path] | None = None

    def of_window(self, work: DispatcherWork) -> list[CutRecord]:
        """Return the recorded cuts of a dispatcher's window, in order. The first call lists the target, so it may take a while."""
        paths = [p for p in self._paths() if p.dispatcher == str(work.dispatcher)]
        for stale in paths:
            if stale.from_ts < work.from_ts:
                # Its window is committed, or this one would not have begun.
                self._target.delete(stale.path)
        found = [self._read(p.path) for p in paths if p.from_ts == work.from_ts]
        return sorted(record for record in found if record is not None)

    def record(self, work: DispatcherWork, cut: CutRecord) -> None:
        """Record a cut before its file is published; the same one may be recorded again."""
        reach("cut-record:before")
        try:
            self._target.put_new(_path_of(work.dispatcher, work.from_ts, cut.file), msgspec.json.encode(cut))
        except PenstockError as error:
            if error.code != "SINK_CONFLICT":
                raise
            raise PenstockError("CUT_CONFLICT", f"dispatcher {work.dispatcher}: file {cut.file} was cut elsewhere") from None
        reach("cut-record:after")

    def explain_conflict(self, work: DispatcherWork, file: int, known: Sequence[CutRecord], error: PenstockError) -> PenstockError:
        """Return what a conflict of a data file means: another attempt's cuts (try again), or foreign bytes (the error itself)."""
        if any(cut.file == file and cut.rows for cut in known):
            self._target.put(_path_of(work.dispatcher, work.from_ts, file), msgspec.json.encode(CutRecord(0, file)))
            return PenstockError("CUT_CONFLICT", f"dispatcher {work.dispatcher}: file {file} was published without its recorded cut")
        with self._lock:
            self._listed = None
        recorded = {p.file for p in self._paths() if p.dispatcher == str(work.dispatcher) and p.from_ts == work.from_ts}
        if recorded - {cut.file for cut in known}:
            return PenstockError("CUT_CONFLICT", f"dispatcher {work.dispatcher}: another attempt cut this window")
        return error

    def _paths(self) -> list[_Path]:
        with self._lock:
            if self._listed is None:
                self._listed = [p for p in map(_parse, self._target.paths(CUTS_DIR)) if p is not None]
            return self._listed

    def _read(self, path: str) -> CutRecord | None:
        content = self._target.find(path)
        if content is None:
            return None
        try:
            return decoded(content, CutRecord)
        except msgspec.MsgspecError as error:
            raise PenstockError("FILE_MALFORMED", f"{path}: line 1: {error}") from error


def _path_of(dispatcher: DispatcherId, from_ts: int, file: int) -> str:
    return f"{CUTS_DIR}/{dispatcher}/{from_ts}/{file:06d}"


def _parse(path: str) -> _Path | None:
    parts = path.removeprefix(CUTS_DIR + "/").split("/")
    if len(parts) != 3 or not parts[1].isdecimal() or not parts[2].isdecimal():
        return None
    return _Path(path, parts[0], int(parts[1]), int(parts[2]))
