"""The fused JSON kernel: whole messages in one pass, straight from Arrow buffers.

A message is a row of a sheet: each entry has a fixed text before it (keys, brackets, whole constant parts), the operations and the flags
under which it is written at all, and a value. One compiled function serves every table shape and every JSON protocol.
Invariant: nothing outside the described buffers is read. Runs on executors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.format.go_floats import plain_floats, rewritten_texts
from penstock.format.json.escaping import escaped_size, put_escaped, put_latin1
from penstock.format.sheet_kernels import ONE, Described, Space, described, fill, is_null, put_signed, put_unsigned, text_bounds
from penstock.kernels.byte_ranges import copy_short
from penstock.kernels.jit import I64, U8, kernel
from penstock.kernels.memory import load_u8, store_u8

NOTHING = 0
TEXT = 1
LATIN1 = 2
BARE = 3
SIGNED = 4
UNSIGNED = 5
CHOICE = 6

ALL_OPS = 0b111
"""Bits by ``Op``: INSERT, UPDATE, DELETE."""

# The fields of an entry.
_KIND, _WIDTH, _VALIDITY, _OFFSETS, _VALUES, _FIRST, _LEAD, _LEAD_SIZE, _OPS, _FLAGS, _QUOTED, _COMMA = range(12)

_NULL_WORD = np.frombuffer(b"null", np.uint8)
_EXACT_FROM = 4096
"""Texts of this size and more are measured before they are written, so that a large value asks for no more room than it takes."""


@kernel
def _size_max(sheet: I64, column: int, at: np.int64) -> np.uint64:
    """Return how many bytes an entry may take at most."""
    kind = sheet[column, _KIND]
    size = sheet[column, _LEAD_SIZE] + 32
    if TEXT <= kind <= BARE:
        low, high = text_bounds(np.uint64(sheet[column, _OFFSETS]), sheet[column, _WIDTH], at)
        length = high - low
        if kind == BARE:
            size += length
        elif length >= _EXACT_FROM:
            size += escaped_size(np.uint64(sheet[column, _VALUES]) + np.uint64(low), length)
        else:
            size += 6 * length
    elif kind == CHOICE:
        size += sheet[column, _WIDTH]
    return np.uint64(size)


@kernel
def _put_value(sheet: I64, column: int, at: np.int64, to: np.uint64) -> np.uint64:
    kind = sheet[column, _KIND]
    values, width = np.uint64(sheet[column, _VALUES]), sheet[column, _WIDTH]
    if kind == SIGNED:
        return put_signed(values, width, at, to)
    if kind == UNSIGNED:
        return put_unsigned(values, width, at, to)
    low, high = text_bounds(np.uint64(sheet[column, _OFFSETS]), width, at)
    source = values + np.uint64(low)
    if kind == TEXT:
        return put_escaped(source, high - low, to)
    if kind == LATIN1:
        return put_latin1(source, high - low, to)
    copy_short(source, to, high - low)
    return to + np.uint64(high - low)


@kernel
def _put_choice(sheet: I64, column: int, at: np.int64, to: np.uint64) -> np.uint64:
    # The codes lie at the offsets' address, the texts one after the other with their bounds before them.
    code = load_u8(np.uint64(sheet[column, _OFFSETS]) + np.uint64(at))
    low, high = text_bounds(np.uint64(sheet[column, _VALIDITY]), np.int64(8), np.int64(code))
    copy_short(np.uint64(sheet[column, _VALUES]) + np.uint64(low), to, high - low)
    return to + np.uint64(high - low)


@kernel
def write_messages(sheet: I64, ops: U8, start: int, rows: int, out: U8) -> tuple[int, int]:
    """Write messages from row ``start`` on; return (rows written so far, bytes used).

    Stops before a row that might not fit: rows written < rows then, and the caller goes on with a new buffer.
    """
    base = np.uint64(out.ctypes.data)
    limit = base + np.uint64(len(out))
    to = base
    for row in range(start, rows):
        begin = to
        bit = 1 << ops[row]
        for column in range(sheet.shape[0]):
            if not sheet[column, _OPS] & bit:
                continue
            flags = np.uint64(sheet[column, _FLAGS])
            if flags != 0 and load_u8(flags + np.uint64(row)) == 0:
                continue
            at = sheet[column, _FIRST] + row
            if to + _size_max(sheet, column, at) > limit:
                return row, int(begin - base)
            if sheet[column, _COMMA] and load_u8(to - ONE) != 123:
                store_u8(to, np.uint8(44))
                to += ONE
            copy_short(np.uint64(sheet[column, _LEAD]), to, sheet[column, _LEAD_SIZE])
            to += np.uint64(sheet[column, _LEAD_SIZE])
            kind = sheet[column, _KIND]
            if kind == NOTHING:
                continue
            if kind == CHOICE:
                to = _put_choice(sheet, column, at, to)
            elif is_null(np.uint64(sheet[column, _VALIDITY]), at):
                for i in range(4):
                    store_u8(to + np.uint64(i), _NULL_WORD[i])
                to += np.uint64(4)
            elif sheet[column, _QUOTED]:
                store_u8(to, np.uint8(34))
                to = _put_value(sheet, column, at, to + ONE)
                store_u8(to, np.uint8(34))
                to += ONE
            else:
                to = _put_value(sheet, column, at, to)
    return rows, int(to - base)


class Surrounded(NamedTuple):
    """What stands around every message of a protocol: entries before it, and the same bytes behind it."""

    lead: Callable[[MessageSheet], None]
    tail: bytes


class MessageSheet:
    """The entries of one batch of messages, in the order in which they stand in a message."""

    def __init__(self, ops: U8) -> None:
        self._ops = np.ascontiguousarray(ops)
        self._rows = len(ops)
        self._entries: list[list[int]] = []
        self._kept: list[object] = []
        self._estimate = 0
        self._lead: list[bytes] = []
        self._lead_rule = (ALL_OPS, 0, False)
        self._leads: list[bytes] = []
        self._leads_size = 0

    def constant(self, text: bytes, ops: int = ALL_OPS, flags: U8 | None = None, *, comma: bool = False) -> None:
        """Add the same bytes to every message of these operations and flags; neighbours under one rule become one."""
        rule = (ops, self._flags(flags), comma)
        if comma or rule != self._lead_rule:
            self._flush_lead()
            self._lead_rule = rule
        self._lead.append(text)

    def choice(self, codes: U8, texts: list[bytes], ops: int = ALL_OPS) -> None:
        """Add one of a few texts to every message, by its code."""
        codes = np.ascontiguousarray(codes)
        bounds = np.cumsum([0, *map(len, texts)]).astype(np.int64)
        joined = np.frombuffer(b"".join(texts) or b" ", np.uint8)
        self._kept += [codes, bounds, joined]
        place = Described(max(map(len, texts)), bounds.ctypes.data, codes.ctypes.data, joined.ctypes.data, 0)
        self._entry(CHOICE, place, ops, None, False, len(texts[0]) * self._rows)

    def integers(self, values: pa.Array, ops: int = ALL_OPS, flags: U8 | None = None, *, quoted: bool = True) -> None:
        """Add whole numbers, as strings or bare."""
        self._column(SIGNED if pa.types.is_signed_integer(values.type) else UNSIGNED, values, ops, flags, quoted, 14)

    def text(self, values: pa.Array, ops: int = ALL_OPS, flags: U8 | None = None) -> None:
        """Add texts or bytes (as ISO-8859-1) as strings."""
        latin1 = pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type)
        self._column(LATIN1 if latin1 else TEXT, values, ops, flags, True, 4)

    def words(self, values: pa.Array) -> None:
        """Add texts in which nothing has to be escaped, as strings."""
        self._column(BARE, values, ALL_OPS, None, True, 4)

    def floats(self, values: pa.Array, ops: int = ALL_OPS, flags: U8 | None = None, *, quoted: bool = True) -> None:
        """Add floats: the shortest digits that read back as the same number, never with an exponent."""
        self._column(BARE, rewritten_texts(values, plain_floats), ops, flags, quoted, 4)

    def render_into(self, space: Space) -> None:
        """Append all messages."""
        self._flush_lead()
        sheet = np.array(self._entries, np.int64)
        leads = np.frombuffer(b"".join(self._leads) or b" ", np.uint8)
        sheet[:, _LEAD] += leads.ctypes.data
        size = int(self._estimate * 1.05) + 8192
        fill(space, self._rows, size, lambda done, out: write_messages(sheet, self._ops, done, self._rows, out))

    def _column(self, kind: int, values: pa.Array, ops: int, flags: U8 | None, quoted: bool, row_bytes: int) -> None:
        place, nbytes = described(values)
        self._kept.append(values)
        self._entry(kind, place, ops, flags, quoted, nbytes + row_bytes * self._rows)

    def _entry(self, kind: int, place: Described, ops: int, flags: U8 | None, quoted: bool, nbytes: int) -> None:
        """Add an entry whose values take about so many bytes in all messages."""
        rule = (ops, self._flags(flags))
        if rule != self._lead_rule[:2]:
            self._flush_lead()
        lead, comma, self._lead = b"".join(self._lead), self._lead_rule[2], []
        self._lead_rule = (*rule, False)
        at = self._keep_lead(lead)
        self._entries.append([kind, *place, at, len(lead), ops, rule[1], int(quoted), int(comma)])
        self._estimate += nbytes

    def _flush_lead(self) -> None:
        if self._lead:
            ops, flags, comma = self._lead_rule
            lead = b"".join(self._lead)
            self._entries.append([NOTHING, 0, 0, 0, 0, 0, self._keep_lead(lead), len(lead), ops, flags, 0, int(comma)])
            self._lead = []
        self._lead_rule = (ALL_OPS, 0, False)

    def _keep_lead(self, lead: bytes) -> int:
        """Keep a fixed text; return where it lies among all of them, which is turned into an address when all are known."""
        at = self._leads_size
        self._leads.append(lead)
        self._leads_size += len(lead)
        self._estimate += len(lead) * self._rows
        return at

    def _flags(self, flags: U8 | None) -> int:
        if flags is None:
            return 0
        self._kept.append(flags)
        return int(flags.ctypes.data)
