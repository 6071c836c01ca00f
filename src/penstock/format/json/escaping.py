r"""Texts inside JSON strings, escaped as easyjson does.

Short forms of quote, backslash, tab, CR and LF, ``\u00xx`` for other control characters and for ``<``, ``>``, ``&``, and for U+2028 and
U+2029. Text without any of them, the common case, is copied eight bytes at a time. Runs on executors.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from penstock.format.sheet_kernels import EIGHT, HIGH_BITS, LOW_BITS, ONE
from penstock.kernels.jit import U8, kernel
from penstock.kernels.memory import load_u8, load_u64, store_u8, store_u64

_SPACES = np.uint64(0x2020202020202020)
_NOT_4 = np.uint64(0xFBFBFBFBFBFBFBFB)
_NOT_2 = np.uint64(0xFDFDFDFDFDFDFDFD)
_QUOTES = np.uint64(0x2222222222222222)
_ANGLES = np.uint64(0x3C3C3C3C3C3C3C3C)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_LEAD_E2 = np.uint64(0xE2E2E2E2E2E2E2E2)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)

_AS_IT_IS, _UNICODE, _LEAD_BYTE = 0, 1, 2


def _classes() -> U8:
    table = np.zeros(256, np.uint8)
    table[:0x20] = _UNICODE
    table[list(b"<>&")] = _UNICODE
    for byte, letter in zip(b'"\\\t\r\n', b'"\\trn', strict=True):
        table[byte] = letter
    table[0xE2] = _LEAD_BYTE
    return table


_CLASS = _classes()


@lru_cache(maxsize=65_536)
def escape_text(text: str) -> bytes:
    """Return one text as a JSON string, quotes included, escaped as the kernel does."""
    out = bytearray(b'"')
    for char in text:
        code = ord(char)
        sort = int(_CLASS[code]) if code < 0x80 else _AS_IT_IS
        if char in "\u2028\u2029" or sort == _UNICODE:
            out += b"\\u%04x" % code
        elif sort == _AS_IT_IS:
            out += char.encode("utf-8", errors="replace")
        else:
            out += b"\\" + bytes([sort])
    return bytes(out + b'"')


@kernel
def _needs_care(word: np.uint64) -> bool:
    """Return whether one of eight bytes may have to be escaped."""
    quote = (word & _NOT_4) ^ _QUOTES
    angle = (word & _NOT_2) ^ _ANGLES
    back = word ^ _BACKSLASHES
    lead = word ^ _LEAD_E2
    found = (quote - LOW_BITS) & ~quote
    found |= (angle - LOW_BITS) & ~angle
    found |= (back - LOW_BITS) & ~back
    found |= (lead - LOW_BITS) & ~lead
    found |= (word - _SPACES) & ~word
    return bool((found & HIGH_BITS) != 0)


@kernel
def _put_unicode(code: np.uint8, to: np.uint64) -> np.uint64:
    store_u8(to, np.uint8(92))
    store_u8(to + ONE, np.uint8(117))
    store_u8(to + np.uint64(2), np.uint8(48))
    store_u8(to + np.uint64(3), np.uint8(48))
    store_u8(to + np.uint64(4), _HEX[code >> 4])
    store_u8(to + np.uint64(5), _HEX[code & 15])
    return to + np.uint64(6)


@kernel
def _is_separator(at: np.uint64, end: np.uint64) -> bool:
    """Return whether U+2028 or U+2029 stands here, after a byte E2."""
    return bool(at + np.uint64(2) < end and load_u8(at + ONE) == 0x80 and (load_u8(at + np.uint64(2)) & 0xFE) == 0xA8)


@kernel
def _put_separator(last: np.uint8, to: np.uint64) -> np.uint64:
    store_u8(to, np.uint8(92))
    store_u8(to + ONE, np.uint8(117))
    store_u8(to + np.uint64(2), np.uint8(50))
    store_u8(to + np.uint64(3), np.uint8(48))
    store_u8(to + np.uint64(4), np.uint8(50))
    store_u8(to + np.uint64(5), np.uint8(56) + (last & np.uint8(1)))
    return to + np.uint64(6)


@kernel
def put_escaped(source: np.uint64, size: np.int64, to: np.uint64) -> np.uint64:
    """Put a text as the inside of a JSON string; return the address after it."""
    at, end = source, source + np.uint64(size)
    while at < end:
        while at + EIGHT <= end:
            word = load_u64(at)
            if _needs_care(word):
                break
            store_u64(to, word)
            at += EIGHT
            to += EIGHT
        if at == end:
            break
        stop = min(at + EIGHT, end)
        if stop == end and at >= source + EIGHT:
            # The last eight bytes once more, in one piece; those before them were copied as they are or are written again.
            word = load_u64(end - EIGHT)
            back = EIGHT - (end - at)
            if not _needs_care(word) and load_u64(to - EIGHT) == load_u64(at - EIGHT):
                store_u64(to - back, word)
                return to + (end - at)
        while at < stop:
            byte = load_u8(at)
            sort = _CLASS[byte]
            if sort == _AS_IT_IS:
                store_u8(to, byte)
                to += ONE
            elif sort == _UNICODE:
                to = _put_unicode(byte, to)
            elif sort == _LEAD_BYTE:
                if _is_separator(at, end):
                    to = _put_separator(load_u8(at + np.uint64(2)), to)
                    at += np.uint64(3)
                    continue
                store_u8(to, byte)
                to += ONE
            else:
                store_u8(to, np.uint8(92))
                store_u8(to + ONE, sort)
                to += np.uint64(2)
            at += ONE
    return to


@kernel
def put_latin1(source: np.uint64, size: np.int64, to: np.uint64) -> np.uint64:
    """Put bytes as characters of ISO-8859-1, escaped."""
    for i in range(size):
        byte = load_u8(source + np.uint64(i))
        sort = _CLASS[byte]
        if byte >= 0x80:
            store_u8(to, np.uint8(0xC0) | (byte >> np.uint8(6)))
            store_u8(to + ONE, np.uint8(0x80) | (byte & np.uint8(0x3F)))
            to += np.uint64(2)
        elif sort == _AS_IT_IS:
            store_u8(to, byte)
            to += ONE
        elif sort == _UNICODE:
            to = _put_unicode(byte, to)
        else:
            store_u8(to, np.uint8(92))
            store_u8(to + ONE, sort)
            to += np.uint64(2)
    return to


@kernel
def escaped_size(source: np.uint64, size: np.int64) -> np.int64:
    """Return an upper bound of the escaped size that is close to it, for text and bytes alike."""
    extra = 0
    for i in range(size):
        byte = load_u8(source + np.uint64(i))
        sort = _CLASS[byte]
        if sort == _UNICODE:
            extra += 5
        elif sort == _LEAD_BYTE:
            extra += 3
        elif sort != _AS_IT_IS or byte >= 0x80:
            extra += 1
    return size + extra
