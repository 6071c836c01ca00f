"""Compiled kernels that find the fields of JSON messages.

A key table says which keys matter: each slot has a parent slot, and a slot with children is an object (or an array of one object) that is
entered; everything else is passed over. ``tokenize`` is one scan that notes for each message where the value of each slot begins and
ends and of which sort it is. It never goes back and always moves on, so any input ends; nesting is bounded. Kernels release the
interpreter lock and are cached on disk. Runs wherever a target is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.format.csv.tokens import CODED, NULL, PLAIN
from penstock.format.json.strings import decode_string
from penstock.kernels.byte_ranges import same_range
from penstock.kernels.jit import I64, U8, kernel

BARE = 3
"""A number or a truth value."""
MISSING = 4
ENTERED = 5
"""An object whose children are slots of their own."""

OK = 0
UNTERMINATED = 1
NOT_AN_OBJECT = 2
BAD_STRING = 3
BAD_VALUE = 4
BAD_SEPARATOR = 5
TOO_DEEP = 6

ERROR_TEXTS = {
    UNTERMINATED: "the message does not end",
    NOT_AN_OBJECT: "a message must be a JSON object",
    BAD_STRING: "a control character or a bad escape in a string",
    BAD_VALUE: "neither a string, a number, true, false, null, an object nor an array",
    BAD_SEPARATOR: "a comma, a colon or a closing bracket is missing",
    TOO_DEEP: "nested too deeply",
}

_DEPTH_MAX = 64
_QUOTE, _BACKSLASH, _COMMA, _COLON = 34, 92, 44, 58


@dataclass(frozen=True, slots=True)
class KeyTable:
    """The slots of a protocol, children of one parent side by side."""

    parents: I64
    first: I64
    counts: I64
    offsets: I64
    names: U8
    places: dict[tuple[str, ...], int]

    @classmethod
    def of(cls, paths: Sequence[tuple[str, ...]]) -> KeyTable:
        """Build the table of some paths; a path's parents become slots of their own."""
        every: list[tuple[str, ...]] = [()]
        seen: set[tuple[str, ...]] = {()}
        for path in paths:
            for depth in range(1, len(path) + 1):
                if path[:depth] not in seen:
                    seen.add(path[:depth])
                    every.append(path[:depth])
        # By depth and parent, so that children stand side by side; their own order is kept.
        rank = {path: at for at, path in enumerate(every)}
        ordered = sorted(every, key=lambda p: (len(p), rank.get(p[:-1], -1), rank[p]))
        places = {path: at for at, path in enumerate(ordered)}
        count = len(ordered)
        parents = np.full(count, -1, np.int64)
        first, counts = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for path, at in places.items():
            if path:
                parent = parents[at] = places[path[:-1]]
                if counts[parent] == 0:
                    first[parent] = at
                counts[parent] += 1
        names = [p[-1].encode() if p else b"" for p in ordered]
        offsets = np.cumsum([0, *map(len, names)]).astype(np.int64)
        return cls(parents, first, counts, offsets, np.frombuffer(b"".join(names) or b" ", np.uint8), places)


@kernel
def _skip_space(data: U8, at: int) -> int:
    while at < len(data) and data[at] in (32, 9, 10, 13):
        at += 1
    return at


@kernel
def _scan_string(data: U8, at: int) -> tuple[int, int]:
    """Return the position of the closing quote, or -1 (no end) or -2 (a control character), and the sort."""
    sort = PLAIN
    while at < len(data):
        byte = data[at]
        if byte == _QUOTE:
            return at, sort
        if byte < 32:
            return -2, sort
        if byte == _BACKSLASH:
            sort = CODED
            at += 1
        at += 1
    return -1, sort


@kernel
def _skip_nested(data: U8, at: int) -> int:
    """Return the position after an object or array that begins here, -1 where it does not end."""
    depth = 0
    while at < len(data):
        byte = data[at]
        if byte == _QUOTE:
            close, _ = _scan_string(data, at + 1)
            if close < 0:
                return -1
            at = close
        elif byte in (123, 91):
            depth += 1
        elif byte in (125, 93):
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return -1


@kernel
def _bare_end(data: U8, at: int) -> int:
    while at < len(data) and data[at] not in (_COMMA, 125, 93, 32, 9, 10, 13):
        at += 1
    return at


@kernel
def _is_word(data: U8, start: int, end: int) -> bool:
    """Return whether a bare value is a number, true or false."""
    if start == end:
        return False
    first = data[start]
    if first == 45 or 48 <= first <= 57:
        for at in range(start + 1, end):
            byte = data[at]
            if not (48 <= byte <= 57 or byte in (43, 45, 46, 69, 101)):
                return False
        return True
    if end - start == 4:
        return bool(first == 116 and data[start + 1] == 114 and data[start + 2] == 117 and data[start + 3] == 101)
    return bool(end - start == 5 and first == 102 and data[start + 1] == 97 and data[start + 2] == 108 and data[start + 4] == 101)


@kernel
def _is_null(data: U8, start: int, end: int) -> bool:
    return end - start == 4 and data[start] == 110 and data[start + 1] == 117 and data[start + 2] == 108 and data[start + 3] == 108


@kernel
def _find_key(data: U8, start: int, end: int, parent: int, expected: int, first: I64, counts: I64, offsets: I64, names: U8) -> int:
    """Return the slot of a key, -1 where it does not matter; keys mostly come in the order of the table."""
    low, count = first[parent], counts[parent]
    for step in range(count):
        slot = int(low + (expected - low + step) % count)
        if same_range(data, start, end, names, offsets[slot], offsets[slot + 1]):
            return slot
    return -1


@kernel
def tokenize(  # noqa: PLR0911, PLR0912, PLR0915, C901 - one scan; numba inlines no closures
    data: U8,
    at: int,
    first: I64,
    counts: I64,
    offsets: I64,
    names: U8,
    starts: I64,
    ends: I64,
    sorts: U8,
) -> tuple[int, int, int]:
    """Fill the (slots, rows) arrays from position ``at`` on; return messages found, where the next begins (or the fault), and a code."""
    slots, rows = starts.shape
    size = len(data)
    parents = np.empty(_DEPTH_MAX, np.int64)
    closers = np.empty(_DEPTH_MAX, np.int64)
    expected = np.empty(_DEPTH_MAX, np.int64)
    scratch = np.empty(0, np.uint8)
    row = 0
    at = _skip_space(data, at)
    while row < rows and at < size:
        if data[at] != 123:
            return row, at, NOT_AN_OBJECT
        for slot in range(slots):
            sorts[slot, row] = MISSING
            starts[slot, row] = at
            ends[slot, row] = at
        depth = 0
        parents[0], closers[0], expected[0] = 0, 0, first[0]
        at += 1
        fresh = True
        while True:
            at = _skip_space(data, at)
            if at >= size:
                return row, at, UNTERMINATED
            if data[at] == 125:
                at += 1
                if closers[depth]:
                    at = _skip_space(data, at)
                    if at >= size or data[at] != 93:
                        return row, at, BAD_SEPARATOR
                    at += 1
                if depth == 0:
                    break
                depth -= 1
                fresh = False
                continue
            if not fresh:
                if data[at] != _COMMA:
                    return row, at, BAD_SEPARATOR
                at = _skip_space(data, at + 1)
            fresh = False
            if at >= size or data[at] != _QUOTE:
                return row, at, UNTERMINATED if at >= size else BAD_SEPARATOR
            start = at + 1
            close, sort = _scan_string(data, start)
            if close < 0:
                return row, at, UNTERMINATED if close == -1 else BAD_STRING
            if sort == CODED:
                scratch = np.empty(close - start + 3, np.uint8)
                used = decode_string(data, start, close, scratch, 0)
                if used < 0:
                    return row, at, BAD_STRING
                slot = _find_key(scratch, 0, used, parents[depth], expected[depth], first, counts, offsets, names)
            else:
                slot = _find_key(data, start, close, parents[depth], expected[depth], first, counts, offsets, names)
            at = _skip_space(data, close + 1)
            if at >= size or data[at] != _COLON:
                return row, at, UNTERMINATED if at >= size else BAD_SEPARATOR
            at = _skip_space(data, at + 1)
            if at >= size:
                return row, at, UNTERMINATED
            if slot >= 0:
                expected[depth] = slot + 1 if slot + 1 < first[parents[depth]] + counts[parents[depth]] else first[parents[depth]]
            byte = data[at]
            if byte == _QUOTE:
                close, sort = _scan_string(data, at + 1)
                if close < 0:
                    return row, at, UNTERMINATED if close == -1 else BAD_STRING
                if slot >= 0:
                    starts[slot, row], ends[slot, row], sorts[slot, row] = at + 1, close, sort
                at = close + 1
            elif byte in (123, 91):
                enter = slot >= 0 and counts[slot] > 0
                inside = _skip_space(data, at + 1) if byte == 91 else at
                if enter and inside < size and data[inside] == 123:
                    if depth + 1 == _DEPTH_MAX:
                        return row, at, TOO_DEEP
                    starts[slot, row], sorts[slot, row] = inside, ENTERED
                    depth += 1
                    parents[depth], closers[depth], expected[depth] = slot, byte == 91, first[slot]
                    at = inside + 1
                    fresh = True
                else:
                    stop = _skip_nested(data, at)
                    if stop < 0:
                        return row, at, UNTERMINATED
                    if slot >= 0:
                        starts[slot, row], ends[slot, row], sorts[slot, row] = at, stop, BARE
                    at = stop
            else:
                stop = _bare_end(data, at)
                if _is_null(data, at, stop):
                    sort = NULL
                elif _is_word(data, at, stop):
                    sort = BARE
                else:
                    return row, at, BAD_VALUE
                if slot >= 0:
                    starts[slot, row], ends[slot, row], sorts[slot, row] = at, stop, sort
                at = stop
        row += 1
        at = _skip_space(data, at)
    return row, at, OK
