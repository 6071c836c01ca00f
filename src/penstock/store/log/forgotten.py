"""What a write-ahead log has forgotten, because it is in objects: noted beside the segments before one goes.

So a log that does not belong to its objects is recognised: they are older where a directory was copied piece by piece while a server worked
in it, or where storage was put back to an earlier state, and rows would be missing that neither has. Format version 1: JSON with magic,
version and checksum. A log without a note, of an earlier Penstock or one that never forgot, is taken as it is. Runs in the log service.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from penstock.files.durable_names import sync_directory
from penstock.files.private_files import open_private
from penstock.model.errors import PenstockError
from penstock.store.objects.manifest import seal, unseal

FILE = "forgotten.json"
MAGIC = "penstock-forgotten"
VERSION = 1
_HINT = "Remove the folder `store` of the data directory: what it holds is pulled again. Copy a directory only while its server is stopped."


class Forgotten(msgspec.Struct, frozen=True):
    """``oldest`` is the first segment that is left; per span, the ts up to which rows were in those that are gone."""

    oldest: int = 0
    spans: dict[int, int] = {}

    def with_segment(self, number: int, max_ts: Mapping[int, int]) -> Forgotten:
        """Return what is forgotten once a segment is gone as well."""
        spans = self.spans | {span_id: max(ts, self.spans.get(span_id, 0)) for span_id, ts in max_ts.items()}
        return Forgotten(number + 1, spans)

    def check_segments(self, first: int) -> None:
        """Raise ``WAL_CORRUPT`` where the first segment of a log is not the oldest that was left."""
        if first > self.oldest > 0:
            raise PenstockError("WAL_CORRUPT", f"write-ahead log segment {self.oldest} is missing", _HINT)

    def check_objects(self, flushed_ts: Mapping[int, int]) -> None:
        """Raise ``WAL_CORRUPT`` where the objects of a span do not reach as far as the log relied on them."""
        for span_id, ts in self.spans.items():
            if flushed_ts.get(span_id, -1) < ts:
                reach = f"reach to ts {flushed_ts[span_id]}" if span_id in flushed_ts else "are not there"
                raise PenstockError(
                    "WAL_CORRUPT", f"span {span_id}: the write-ahead log relies on objects up to ts {ts}, and those here {reach}", _HINT
                )


def read_forgotten(directory: Path) -> Forgotten:
    """Return what the log in a directory has forgotten."""
    try:
        content = (directory / FILE).read_bytes()
    except FileNotFoundError:
        return Forgotten()
    try:
        return unseal(FILE, content, MAGIC, VERSION, Forgotten)
    except PenstockError as error:
        raise PenstockError("WAL_CORRUPT", error.detail, _HINT) from error


def note_forgotten(directory: Path, forgotten: Forgotten) -> None:
    """Make durable what the log is about to forget."""
    partial = directory / f"{FILE}.new"
    with open(partial, "wb", opener=open_private) as sink:
        sink.write(seal(MAGIC, VERSION, msgspec.json.encode(forgotten)))
        sink.flush()
        os.fsync(sink.fileno())
    partial.replace(directory / FILE)
    sync_directory(directory)
