"""Changes out of data files: CSV lines and Canal-JSON messages.

It knows the sections "CSV" and "Canal-JSON". It runs in tests. What the feed was configured with is told by
the caller (`Settings`): the target does not say it.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testing.consumer.values import Column, Value, from_canal, from_csv

META = ("operation", "table", "schema", "commit-ts", "is-update")


@dataclass(frozen=True)
class Settings:
    """The options of the feed that decide how its files are read, with the defaults of the document."""

    date_separator: str = "day"
    delimiter: str = ","
    quote: str = '"'
    null: str = "\\N"
    terminator: str = "\r\n"
    header: bool = False
    old_value: bool = False
    binary: str = "base64"


@dataclass(frozen=True)
class Change:
    """One change of a row. The values are those of the columns that the file holds, by name."""

    operation: str
    ts: int
    values: dict[str, Value]


def changes(path: Path, schema: str, table: str, columns: list[Column], settings: Settings) -> Iterator[Change]:
    """Give the changes of one data file, in its order."""
    content = path.read_bytes()
    name = path.name
    if name.endswith(".gz"):
        content, name = gzip.decompress(content), name.removesuffix(".gz")
    text = content.decode()
    carried = [column for column in columns if not column.virtual]
    if name.endswith(".csv"):
        yield from _csv(text, schema, table, carried, settings)
    elif name.endswith(".json"):
        yield from _canal(text, schema, table, {column.name: column for column in carried}, settings.terminator)
    else:
        raise ValueError(f"no reader for {name}")


def _csv(text: str, schema: str, table: str, columns: list[Column], settings: Settings) -> Iterator[Change]:
    fixed = META if settings.old_value else META[:-1]
    if settings.header:
        header = (
            settings.delimiter.join([*(f"ticdc-meta${name}" for name in fixed), *(column.name for column in columns)]) + settings.terminator
        )
        if not text.startswith(header):
            raise ValueError(f"the first line is not {header!r}")
        text = text[len(header) :]
    for line in _lines(text, settings):
        if len(line) != len(fixed) + len(columns) or line[1:3] != [table, schema]:
            raise ValueError(f"a line of other columns or of another table: {line}")
        values = {
            column.name: None if field is None else from_csv(field, column, settings.binary)
            for column, field in zip(columns, line[len(fixed) :], strict=True)
        }
        yield Change(str(line[0]), int(str(line[3])), values)


def _lines(text: str, settings: Settings) -> Iterator[list[str | None]]:
    """Give lines as fields, None for NULL. Delimiters and line ends inside quotes are text."""
    at, fields = 0, list[str | None]()
    while at < len(text):
        if settings.quote and text.startswith(settings.quote, at):
            field, at = _quoted(text, at, settings.quote)
            fields.append(field)
        else:
            raw, at = _bare(text, at, settings)
            fields.append(None if raw == settings.null else raw if settings.quote else _unescaped(raw))
        if text.startswith(settings.terminator, at):
            at += len(settings.terminator)
            yield fields
            fields = []
        elif text.startswith(settings.delimiter, at):
            at += len(settings.delimiter)
        else:
            raise ValueError(f"neither a delimiter nor the end of a line at {text[at : at + 20]!r}")
    if fields:
        raise ValueError("the last line has no end")


def _quoted(text: str, at: int, quote: str) -> tuple[str, int]:
    pieces, start = [], at + len(quote)
    while True:
        end = text.index(quote, start)
        pieces.append(text[start:end])
        start = end + len(quote)
        if not text.startswith(quote, start):
            return quote.join(pieces), start
        start += len(quote)


def _bare(text: str, at: int, settings: Settings) -> tuple[str, int]:
    end = at
    while end < len(text) and not text.startswith((settings.delimiter, settings.terminator), end):
        end += 2 if not settings.quote and text[end] == "\\" else 1
    return text[at:end], end


def _unescaped(raw: str) -> str:
    pieces, at = [], 0
    while at < len(raw):
        if raw[at] == "\\":
            at += 1
            pieces.append({"r": "\r", "n": "\n"}.get(raw[at], raw[at]))
        else:
            pieces.append(raw[at])
        at += 1
    return "".join(pieces)


def _canal(text: str, schema: str, table: str, columns: dict[str, Column], terminator: str) -> Iterator[Change]:
    *messages, rest = text.split(terminator)
    if rest:
        raise ValueError("the last message has no end")
    for message in map(json.loads, messages):
        if (message["database"], message["table"]) != (schema, table) or message["isDdl"]:
            raise ValueError(f"a message of another table: {message}")
        (data,) = message["data"]
        values = {name: None if value is None else from_canal(value, columns[name]) for name, value in data.items()}
        yield Change(message["type"][0], message["_tidb"]["commitTs"], values)
