"""Writing a span's objects: a stream of ordered batches becomes objects of bounded size under names that nobody else uses.

Nothing refers to an object until a manifest names it, so an attempt that fails leaves files that the next opening removes. Runs in
the log service.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from penstock.model.batch import BatchKind, ChangeBatch
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.store.objects.object_file import ObjectKind, ObjectMeta, ObjectWriter
from penstock.store.objects.objects import ObjectSpace


@dataclass(frozen=True)
class ObjectSettings:
    """How memory is written to objects, and under which epoch of their owner."""

    nbytes_max: int
    compression: str | None
    epoch: int = 0


class SpanWriter:
    """Writes objects of one span."""

    def __init__(self, space: ObjectSpace, span_id: int, settings: ObjectSettings, rng: random.Random) -> None:
        self._space = space
        self._span_id = span_id
        self._settings = settings
        self._rng = rng

    def write(
        self,
        number: int,
        side: BatchKind,
        kind: ObjectKind,
        batches: Iterator[ChangeBatch],
        tables: Sequence[TableSchema],
        commit_ts: int = 0,
    ) -> Iterator[ObjectMeta]:
        """Write batches of one side for the manifest of a number; yield the objects as they become durable."""
        for part, piece in enumerate(by_size(batches, self._settings.nbytes_max)):
            # Names sort as the objects are read: two of them may share a ts where a large transaction was cut.
            name = f"{number:012d}-{part:06d}-{self._rng.getrandbits(32):08x}-{side.name.lower()}"
            path = f"spans/{self._span_id}/objects/{name}.arrow"
            writer = ObjectWriter(path, kind, piece, tables, self._settings.compression, commit_ts)
            if not self._space.put_new(path, writer.parts()):
                raise PenstockError("STORE_FAILED", f"object {path} exists already")
            yield writer.meta

    def discard(self, objects: Sequence[ObjectMeta]) -> None:
        """Remove objects that no manifest came to name."""
        for meta in objects:
            self._space.delete(meta.path)


def with_row_ids(objects: Sequence[ObjectMeta], next_row: int) -> tuple[tuple[ObjectMeta, ...], int]:
    """Give the rows of new objects their ids; return the objects and the next free row id."""
    numbered: list[ObjectMeta] = []
    for meta in objects:
        numbered.append(msgspec.structs.replace(meta, first_row=next_row))
        next_row += meta.rows
    return tuple(numbered), next_row


def by_size(batches: Iterator[ChangeBatch], nbytes_max: int) -> Iterator[Iterator[ChangeBatch]]:
    """Cut a stream of batches into streams of about a size. Each must be read to its end before the next is asked for."""
    waiting = next(batches, None)

    def one() -> Iterator[ChangeBatch]:
        nonlocal waiting
        nbytes = 0
        while waiting is not None and (nbytes == 0 or nbytes + waiting.header.nbytes <= nbytes_max):
            yield waiting
            nbytes += waiting.header.nbytes
            waiting = next(batches, None)

    while waiting is not None:
        yield one()
