"""Spans: a table's part of the key space, ``[start_key, end_key)``.

Keys inside a span are row keys without the table prefix: memory-comparable bytes, so their byte order is the order of the primary key.
``b""`` as end means "to the end of the table". Runs anywhere.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable

import msgspec


class Span(msgspec.Struct, frozen=True, order=True):
    """A contiguous range of a table's keys."""

    table_id: int
    start_key: bytes = b""
    end_key: bytes = b""

    @property
    def span_id(self) -> int:
        """Return the span's id: a positive 63-bit number that depends on nothing but the span, so every process agrees on it."""
        text = b"%d|%s|%s" % (self.table_id, self.start_key.hex().encode(), self.end_key.hex().encode())
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1 or 1

    def contains(self, key: bytes) -> bool:
        """Return whether a row key lies in the span."""
        return self.start_key <= key and (not self.end_key or key < self.end_key)


def cut(span: Span, keys: Iterable[bytes], pieces_max: int | None = None) -> tuple[Span, ...]:
    """Return a span cut at the row keys that lie inside it, in key order; at as many of them as make so many pieces, evenly chosen."""
    inside = sorted({key for key in keys if span.contains(key) and key > span.start_key})
    count = len(inside) + 1 if pieces_max is None else max(1, min(pieces_max, len(inside) + 1))
    chosen = [inside[(number * (len(inside) + 1)) // count - 1] for number in range(1, count)]
    borders = [span.start_key, *chosen, span.end_key]
    return tuple(Span(span.table_id, start, end) for start, end in itertools.pairwise(borders))


DDL_TABLE_ID = 0
DDL_SPAN = Span(DDL_TABLE_ID)
"""The span in which a source publishes its DDL events, with a resolved ts of its own."""
