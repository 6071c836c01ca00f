"""Kernels that write numbers as the text that the server prints: DECIMAL, DATE, DATETIME, TIMESTAMP (UTC) and TIME.

Each takes the place of a field in a row image and the place to write at, and returns where it stopped; -1 for bytes that no server
writes. The caller has checked that both ends fit. Zero dates and every fraction digit stay. Runs in the log service.
"""

from __future__ import annotations

import numpy as np

from penstock.kernels.jit import I64, U8, kernel

DIGIT_BYTES: I64 = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], dtype=np.int64)
"""Bytes of so many leading or trailing decimal digits."""
_ZERO = 48
_MONTHS = 12
_DAYS = 31


def decimal_bytes(precision: int, scale: int) -> int:
    """Return how many bytes a DECIMAL takes in a row image."""
    whole = precision - scale
    return whole // 9 * 4 + int(DIGIT_BYTES[whole % 9]) + scale // 9 * 4 + int(DIGIT_BYTES[scale % 9])


@kernel
def big_endian(data: U8, at: int, count: int) -> int:
    """Return an unsigned big-endian number of up to 7 bytes."""
    value = 0
    for p in range(count):
        value = (value << 8) | int(data[at + p])
    return value


@kernel
def little_endian(data: U8, at: int, count: int) -> int:
    """Return an unsigned little-endian number of up to 7 bytes."""
    value = 0
    for p in range(count):
        value |= int(data[at + p]) << (8 * p)
    return value


@kernel
def put_digits(out: U8, at: int, value: int, digits: int) -> int:
    """Write a number with exactly so many digits."""
    left = np.uint64(value)
    ten = np.uint64(10)
    for p in range(digits - 1, -1, -1):
        rest = left // ten
        out[at + p] = np.uint8(_ZERO) + np.uint8(left - rest * ten)
        left = rest
    return at + digits


@kernel
def put_decimal(data: U8, at: int, precision: int, scale: int, digit_bytes: I64, out: U8, to: int) -> int:  # noqa: C901, PLR0912, PLR0915
    """Write a packed decimal with all digits of its scale."""
    whole = precision - scale
    negative = (data[at] & 0x80) == 0
    flip = 0xFF if negative else 0
    first = 0x80
    if negative:
        out[to] = 45
        to += 1
    begin = to
    lead = whole % 9
    size = digit_bytes[lead]
    if size > 0:
        value = 0
        for p in range(size):
            value = (value << 8) | (int(data[at + p]) ^ flip ^ first)
            first = 0
        at += size
        if value > 0:
            width = 1
            bound = 10
            while value >= bound:
                width += 1
                bound *= 10
            if width > lead:
                return -1
            to = put_digits(out, to, value, width)
    for _ in range(whole // 9):
        value = 0
        for p in range(4):
            value = (value << 8) | (int(data[at + p]) ^ flip ^ first)
            first = 0
        at += 4
        if value > 999_999_999:
            return -1
        if to > begin:
            to = put_digits(out, to, value, 9)
        elif value > 0:
            width = 1
            bound = 10
            while value >= bound:
                width += 1
                bound *= 10
            to = put_digits(out, to, value, width)
    if to == begin:
        out[to] = _ZERO
        to += 1
    if scale == 0:
        return to
    out[to] = 46
    to += 1
    left = scale
    while left > 0:
        digits = min(9, left)
        value = 0
        for p in range(digit_bytes[digits]):
            value = (value << 8) | (int(data[at + p]) ^ flip ^ first)
            first = 0
        at += digit_bytes[digits]
        if value >= 10**digits:
            return -1
        to = put_digits(out, to, value, digits)
        left -= digits
    return to


@kernel
def put_date(year: int, month: int, day: int, out: U8, to: int) -> int:
    """Write YYYY-MM-DD; zero parts are values of MySQL."""
    if year > 9999 or month > _MONTHS or day > _DAYS:
        return -1
    to = put_digits(out, to, year, 4)
    out[to] = 45
    to = put_digits(out, to + 1, month, 2)
    out[to] = 45
    return put_digits(out, to + 1, day, 2)


@kernel
def put_clock(hour: int, minute: int, second: int, out: U8, to: int) -> int:
    """Write HH:MM:SS."""
    if hour > 99 or minute > 59 or second > 59:
        return -1
    to = put_digits(out, to, hour, 2)
    out[to] = 58
    to = put_digits(out, to + 1, minute, 2)
    out[to] = 58
    return put_digits(out, to + 1, second, 2)


@kernel
def put_fraction(value: int, digits: int, out: U8, to: int) -> int:
    """Write a point and a fraction that stands in the bytes of an even number of digits; nothing for none."""
    if digits == 0:
        return to
    if digits % 2 == 1:
        value //= 10
    if value >= 10**digits:
        return -1
    out[to] = 46
    return put_digits(out, to + 1, value, digits)


@kernel
def put_datetime(data: U8, at: int, digits: int, out: U8, to: int) -> int:
    """Write a DATETIME of five bytes and its fraction."""
    packed = big_endian(data, at, 5) - 0x8000000000
    if packed < 0:
        return -1
    months = packed >> 22
    to = put_date(months // 13, months % 13, (packed >> 17) & 31, out, to)
    if to < 0 or months // 13 > 9999:
        return -1
    out[to] = 32
    to = put_clock((packed >> 12) & 31, (packed >> 6) & 63, packed & 63, out, to + 1)
    if to < 0:
        return -1
    return put_fraction(big_endian(data, at + 5, (digits + 1) // 2), digits, out, to)


@kernel
def put_seconds(seconds: int, out: U8, to: int) -> int:
    """Write seconds since 1970 as date and time in UTC; 0 is the zero date."""
    if seconds == 0:
        to = put_date(0, 0, 0, out, to)
        out[to] = 32
        return put_clock(0, 0, 0, out, to + 1)
    days = seconds // 86400
    rest = seconds - days * 86400
    # Days to a civil date, counted from March so that the leap day ends a year.
    shifted = days + 719468
    era = shifted // 146097
    day_of_era = shifted - era * 146097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * march + 2) // 5 + 1
    month = march + 3 if march < 10 else march - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    to = put_date(year, month, day, out, to)
    if to < 0:
        return -1
    out[to] = 32
    return put_clock(rest // 3600, rest // 60 % 60, rest % 60, out, to + 1)


@kernel
def put_timestamp(data: U8, at: int, digits: int, out: U8, to: int) -> int:
    """Write a TIMESTAMP of four bytes and its fraction, in UTC."""
    to = put_seconds(big_endian(data, at, 4), out, to)
    if to < 0:
        return -1
    return put_fraction(big_endian(data, at + 4, (digits + 1) // 2), digits, out, to)


@kernel
def put_time(data: U8, at: int, digits: int, out: U8, to: int) -> int:
    """Write a TIME of three bytes and its fraction, with its sign; hours have two or three digits."""
    size = (digits + 1) // 2
    # Sign and fraction are one number: a negative time is the two's complement of both together.
    packed = big_endian(data, at, 3 + size) - (0x800000 << (8 * size))
    if packed < 0:
        packed = -packed
        out[to] = 45
        to += 1
    fraction = packed & ((1 << (8 * size)) - 1)
    packed >>= 8 * size
    hours = (packed >> 12) & 1023
    if hours >= 100:
        out[to] = _ZERO + hours // 100
        to += 1
        hours %= 100
    to = put_clock(hours, (packed >> 6) & 63, packed & 63, out, to)
    if to < 0:
        return -1
    return put_fraction(fraction, digits, out, to)


@kernel
def put_old_time(data: U8, at: int, out: U8, to: int) -> int:
    """Write a TIME of the format before fractions: a signed number HHMMSS of three bytes."""
    value = little_endian(data, at, 3)
    if value >= 0x800000:
        value = 0x1000000 - value
        out[to] = 45
        to += 1
    hours = value // 10000
    if hours >= 100:
        if hours > 999:
            return -1
        out[to] = _ZERO + hours // 100
        to += 1
        hours %= 100
    return put_clock(hours, value // 100 % 100, value % 100, out, to)


@kernel
def put_old_datetime(data: U8, at: int, out: U8, to: int) -> int:
    """Write a DATETIME of the format before fractions: a number YYYYMMDDHHMMSS of eight bytes."""
    value = little_endian(data, at, 7)
    if data[at + 7] != 0:
        return -1
    day, clock = value // 1_000_000, value % 1_000_000
    to = put_date(day // 10000, day // 100 % 100, day % 100, out, to)
    if to < 0:
        return -1
    out[to] = 32
    return put_clock(clock // 10000, clock // 100 % 100, clock % 100, out, to + 1)
