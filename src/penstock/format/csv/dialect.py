"""The options of the CSV protocol and what they mean for encoder and decoder alike.

Invariant: with settings that ``problems`` accepts, every encoded file tokenizes unambiguously; only in escape mode (no quote) is a string
that equals the null text indistinguishable from NULL, except for texts with a backslash such as the default. Runs anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from penstock.model.table import Column, TableSchema

_BARE_BYTES = frozenset(b"0123456789+-.abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_HEADER_PREFIX = "ticdc-meta$"


class BinaryEncoding(StrEnum):
    """How binary values become text."""

    BASE64 = "base64"
    HEX = "hex"


@dataclass(frozen=True, slots=True)
class CsvSettings:
    """The CSV protocol's options.

    ``include_commit_ts`` defaults to True, unlike in the layout's origin: readers need it to stop at the checkpoint and to order the
    files of several dispatchers.
    """

    delimiter: str = field(default=",", metadata={"unit": "escaped"})
    quote: str = '"'
    null: str = "\\N"
    terminator: str = field(default="\r\n", metadata={"unit": "escaped"})
    include_commit_ts: bool = True
    binary_encoding: BinaryEncoding = field(default=BinaryEncoding.BASE64, metadata={"key": "binary-encoding-method"})
    output_old_value: bool = False
    output_field_header: bool = False

    @property
    def line_end(self) -> bytes:
        """Return the terminator; an empty setting means CR LF."""
        return (self.terminator or "\r\n").encode()

    @property
    def meta_fields(self) -> tuple[str, ...]:
        """Return the names of the fields before the table's own columns."""
        names = ["operation", "table", "schema"]
        if self.include_commit_ts:
            names.append("commit-ts")
        if self.output_old_value:
            names.append("is-update")
        return tuple(names)

    def header(self, table: TableSchema) -> bytes:
        """Return the first line of a file, or nothing. Names are never quoted, as in the layout's origin."""
        if not self.output_field_header:
            return b""
        names = [*(_HEADER_PREFIX + name for name in self.meta_fields), *(c.name for c in row_columns(table))]
        return self.delimiter.join(names).encode() + self.line_end

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, what is wrong with it) for every setting that cannot be used."""
        delimiter, quote, null, end = self.delimiter.encode(), self.quote.encode(), self.null.encode(), self.line_end
        if not 1 <= len(delimiter) <= 3:
            yield "delimiter", "must have 1 to 3 bytes"
        if set(delimiter) & set(b"\r\n"):
            yield "delimiter", "must not contain CR or LF"
        if delimiter and set(delimiter) <= _BARE_BYTES:
            yield "delimiter", "could stand inside a number or a word"
        if len(quote) > 1:
            yield "quote", "must be empty or one byte"
        if set(quote) & (_BARE_BYTES | set(b"\r\n")):
            yield "quote", "must not be CR, LF, a letter, a digit, a sign or a point"
        if set(quote) & set(delimiter):
            yield "quote", "must not share a character with the delimiter"
        if not quote and b"\\" in delimiter:
            yield "delimiter", "must not contain a backslash when there is no quote"
        if not quote and set(end) - set(b"\r\n"):
            yield "terminator", "must consist of CR and LF when there is no quote"
        if set(end) & (set(delimiter) | set(quote) | _BARE_BYTES):
            yield "terminator", "must not share a character with delimiter, quote, numbers or words"
        yield from self._null_problems(null, delimiter, quote, end)

    def _null_problems(self, null: bytes, delimiter: bytes, quote: bytes, end: bytes) -> Iterator[tuple[str, str]]:
        if (delimiter and delimiter in null) or set(null) & (set(quote) | set(end) | set(b"\r\n")):
            yield "null", "must not contain delimiter, quote, terminator, CR or LF"
        elif any(null.endswith(delimiter[:n]) or null.startswith(delimiter[n:]) for n in range(1, len(delimiter))):
            yield "null", "must not begin or end with a part of the delimiter"
        elif not quote and null.endswith(b"\\"):
            yield "null", "must not end with a backslash when there is no quote"
        elif _is_bare_value(self.null):
            yield "null", "could be a number or a truth value"


def row_columns(table: TableSchema) -> tuple[Column, ...]:
    """Return the columns whose values rows carry: all but virtual generated ones."""
    return tuple(c for c in table.columns if c.generated != "VIRTUAL")


def _is_bare_value(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text in {"true", "false", "+Inf", "-Inf", "NaN"}
    return True
