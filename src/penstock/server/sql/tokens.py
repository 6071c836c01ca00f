"""Tokens of SQL texts, and how an error points into a text.

Whatever is no blank, quote, comma, semicolon, parenthesis or equals sign makes a word, so that patterns (``shop.*``), durations (``10s``)
and keys (``sink.csv.delimiter``) are words as they stand. Invariants: the time is that of the text's length; an error repeats no text in
quotes that may be a secret, and what else it repeats is masked. Runs in the server and where statements are typed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from penstock.model.errors import PenstockError
from penstock.settings.masking import MASK, mask_text

TEXT_CHARS_MAX = 1 << 18
_SHOWN_CHARS_MAX = 100
_REPEATED_CHARS_MAX = 40
_PARTS = re.compile(
    r"""(?P<blank>\s++|--[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/)"""
    r"""|(?P<text>'(?:[^']|'')*+')"""
    r"""|(?P<name>"(?:[^"]|"")*+"|`(?:[^`]|``)*+`)"""
    r"""|(?P<mark>[(),;=])"""
    r"""|(?P<open>['"`]|/\*)"""
    r"""|(?P<word>[^\s'"`(),;=]++)"""
)
_HARMLESS = re.compile(r"'[\w.*?%!-]{0,40}'")


class TokenKind(StrEnum):
    """What a token is; a name is a word in quotes, which is never a keyword."""

    WORD = "word"
    NAME = "name"
    TEXT = "text"
    MARK = "mark"
    END = "end"


class Token(msgspec.Struct, frozen=True):
    """A token: ``value`` without its quotes, and where it stands in the text."""

    kind: TokenKind
    value: str
    at: int
    end: int

    def is_word(self, *words: str) -> bool:
        """Return whether it is one of these keywords."""
        return self.kind is TokenKind.WORD and self.value.upper() in words

    def is_mark(self, mark: str) -> bool:
        """Return whether it is a mark."""
        return self.kind is TokenKind.MARK and self.value == mark

    def __str__(self) -> str:
        if self.kind is TokenKind.END:
            return "the end"
        if self.kind is TokenKind.TEXT:
            return "a text in quotes"
        short = self.value if len(self.value) <= _REPEATED_CHARS_MAX else f"{self.value[:_REPEATED_CHARS_MAX]}…"
        return repr(mask_text(short)) if mask_text(self.value) == self.value else "what stands there"


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a text, the last of which is its end; raise ``SQL_INVALID`` where a quote or a comment is not closed."""
    if len(text) > TEXT_CHARS_MAX:
        raise PenstockError("SQL_INVALID", f"the text has more than {TEXT_CHARS_MAX} characters")
    found = [*_scan(text)]
    return [*found, Token(TokenKind.END, "", len(text), len(text))]


def _scan(text: str) -> Iterator[Token]:
    for part in _PARTS.finditer(text):
        kind, value, at = part.lastgroup or "", part[0], part.start()
        if kind == "open":
            raise sql_error(text, at, "the comment is not closed" if value == "/*" else f"the quote {value} is not closed")
        if kind == "blank":
            continue
        if kind in {"text", "name"}:
            value = value[1:-1].replace(value[0] * 2, value[0])
        yield Token(TokenKind(kind), value, at, part.end())


def statements_of(text: str) -> list[tuple[int, str]]:
    """Return the statements that semicolons divide a text in, each with its place; those without a token are left out."""
    found: list[tuple[int, str]] = []
    begin: int | None = None
    for token in tokens_of(text):
        if token.kind is TokenKind.END or token.is_mark(";"):
            if begin is not None:
                found.append((begin, text[begin : token.at].rstrip()))
            begin = None
        elif begin is None:
            begin = token.at
    return found


def place_of(text: str, at: int) -> tuple[int, int]:
    """Return line and column of a place in a text, both from 1 on."""
    before = text[:at]
    return before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1


def sql_error(text: str, at: int, message: str, hint: str | None = None) -> PenstockError:
    """Return ``SQL_INVALID`` that names a place and shows it, with a caret below."""
    line, column = place_of(text, at)
    shown, caret = _excerpt(text, at)
    return PenstockError("SQL_INVALID", f"line {line}, column {column}: {message}\n{shown}\n{' ' * caret}^", hint)


def masked_sql(text: str) -> str:
    """Return a text that can be kept: without what stands in quotes and may be a secret. Empty where a quote is not closed."""
    try:
        tokens = tokens_of(text)
    except PenstockError:
        return ""
    shown, last, before = "", 0, ""
    for token in tokens:
        if token.kind is TokenKind.TEXT:
            shown, last = shown + text[last : token.at] + _masked_literal(text[token.at : token.end], before), token.end
        elif token.kind is not TokenKind.MARK:
            before = token.value
    return mask_text(shown + text[last:])


def _masked_literal(literal: str, name: str) -> str:
    named = f"{name}={literal}"
    if "://" in literal and not re.search(r"\s", literal):
        return mask_text(literal)
    return f"'{MASK}'" if mask_text(named) != named or "://" in literal else literal


def _excerpt(text: str, at: int) -> tuple[str, int]:
    """Return the line of a place as it may be shown, and the column of the place in it, from 0 on."""
    shown, caret = "", -1
    for part in _PARTS.finditer(text):
        if caret < 0 and part.start() >= at:
            caret = len(shown)
        quoted = part.lastgroup == "text" and not (_HARMLESS.fullmatch(part[0]) and text[: part.start()].rstrip()[-1:] != "=")
        shown += f"'{MASK}'" if quoted else part[0]
        if part.lastgroup == "open":
            # Nobody knows where the quote was to end.
            shown += "…"
            break
    caret = len(shown) if caret < 0 else caret
    begin = shown.rfind("\n", 0, caret) + 1
    line, caret = shown[begin:].partition("\n")[0], caret - begin
    masked = mask_text(line)
    if masked != line:
        same = next((i for i, (a, b) in enumerate(zip(line, masked, strict=False)) if a != b), min(len(line), len(masked)))
        line, caret = masked, min(caret, same)
    cut = max(0, caret - _SHOWN_CHARS_MAX // 2)
    return line[cut : cut + _SHOWN_CHARS_MAX].replace("\t", " "), caret - cut
