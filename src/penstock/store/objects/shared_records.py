"""What an event store with objects on shared storage keeps there beside them, so that another machine can go on without its log.

``store/schemas/<epoch>-<number>.json`` holds the whole schema log; it is written before a manifest or a mark relies on what is new in it.
``store/marks/<epoch>-<number>.json`` says of every span up to where its rows are in objects: idle spans, and that of the DDLs, publish no
manifests for that. The newest of each counts: names sort by epoch, so an owner that was cut off cannot come after its successor. Both are
create-only, in the envelope of manifests, format version 1. Runs in the log service.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from penstock.model.ddl import DdlEvent
from penstock.model.errors import PenstockError
from penstock.model.span import Span
from penstock.model.table import TableSchema
from penstock.store.objects.manifest import seal, unseal
from penstock.store.objects.objects import ObjectSpace

VERSION = 1
KEPT = 2
_TRIES_MAX = 100

Record = TypeVar("Record", bound=msgspec.Struct)


class SpanMark(msgspec.Struct, frozen=True, array_like=True):
    """Up to ``held_ts`` every row of a span is in its objects; ``start_ts`` is where its history starts."""

    span_id: int
    span: Span
    start_ts: int
    held_ts: int


class Marks(msgspec.Struct, frozen=True):
    """The marks of all spans. ``link`` tells whose meta database they were made with; empty in those of earlier versions."""

    spans: tuple[SpanMark, ...] = ()
    link: str = ""


class Schemas(msgspec.Struct, frozen=True):
    """The schema log: table versions, and DDLs in commit order."""

    tables: tuple[TableSchema, ...] = ()
    ddls: tuple[DdlEvent, ...] = ()


class SharedRecords:
    """The records of one owner. One thread at a time writes."""

    def __init__(self, space: ObjectSpace, epoch: int) -> None:
        self._space = space
        self._epoch = epoch

    def marks(self) -> Marks:
        """Return the newest marks, those of any owner; none where there are none."""
        return self._newest("marks", Marks) or Marks()

    def schemas(self) -> Schemas:
        """Return the newest schema log, of any owner."""
        return self._newest("schemas", Schemas) or Schemas()

    def write_marks(self, marks: Marks) -> None:
        """Write marks; durable when it returns."""
        self._write("marks", marks)

    def write_schemas(self, schemas: Schemas) -> None:
        """Write a schema log; durable when it returns."""
        self._write("schemas", schemas)

    def _newest(self, series: str, kind: type[Record]) -> Record | None:
        for _ in range(_TRIES_MAX):
            names = self._names(series)
            if not names:
                return None
            try:
                return unseal(names[-1], self._space.get(names[-1]), f"penstock-{series}", VERSION, kind)
            except PenstockError as error:
                # The owner before may have removed it after a newer one.
                if error.code != "OBJECT_MISSING":
                    raise
        raise PenstockError("STORE_FAILED", f"the owner before writes {series} at {self._space.uri} all the time")

    def _write(self, series: str, record: msgspec.Struct) -> None:
        names = self._names(series)
        mine = [int(name[-len("000000000000.json") : -len(".json")]) for name in names if _epoch_of(name) == self._epoch]
        number = max(mine, default=0) + 1
        body = [seal(f"penstock-{series}", VERSION, msgspec.json.encode(record))]
        # A number that is taken is this owner's own, of an attempt whose answer was lost.
        while not self._space.put_new(f"store/{series}/{self._epoch:012d}-{number:012d}.json", body):
            number += 1
        # What a later owner wrote is not this one's to remove.
        for name in [name for name in names if _epoch_of(name) <= self._epoch][: 1 - KEPT]:
            self._space.delete(name)

    def _names(self, series: str) -> list[str]:
        return [name for name in self._space.list_names(f"store/{series}/") if name.endswith(".json")]


def _epoch_of(name: str) -> int:
    return int(name.rpartition("/")[2].partition("-")[0])
