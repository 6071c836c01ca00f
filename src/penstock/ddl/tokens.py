"""The words of a statement: where comments, quotes and names begin and end, and how a name or a text is quoted.

Owns the one rule for each. A comment that the server executes (``/*! ... */``) counts as its content, others as nothing; quotes are
doubled or escaped by a backslash, the latter not under ``NO_BACKSLASH_ESCAPES``. Any text gives some words: nothing raises. Runs anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

TableName = tuple[str, str]
_TOKEN = r"""
    /\*(?:!|M!)\d*            # the beginning of a comment that the server executes: its content counts
  | /\*.*?\*/ | --(?=\s|$)[^\n]* | \#[^\n]*
  | \*/
  | `(?:[^`]|``)*`
  | '(?:{inner}|[^'{stop}]|'')*' | "(?:{inner}|[^"{stop}]|"")*"
  | [\w$\u0080-\uffff@]+
  | [^\s]
"""
_ESCAPED = re.compile(_TOKEN.format(inner=r"\\.", stop=r"\\"), re.VERBOSE | re.DOTALL)
_PLAIN = re.compile(_TOKEN.format(inner="(?!)", stop=""), re.VERBOSE | re.DOTALL)


class Word(NamedTuple):
    """A word and where it stands in the text."""

    text: str
    start: int


def words_of(text: str, *, backslash_escapes: bool = True) -> list[Word]:
    """Return the words of a text without comments, with their places."""
    found = (_ESCAPED if backslash_escapes else _PLAIN).finditer(text)
    return [Word(m.group(), m.start()) for m in found if not _is_comment(m.group())]


def tokens(text: str, *, backslash_escapes: bool = True) -> list[str]:
    """Return the words of a text without comments."""
    return [word for word in (_ESCAPED if backslash_escapes else _PLAIN).findall(text) if not _is_comment(word)]


def _is_comment(word: str) -> bool:
    return word.startswith(("/*", "--", "#")) or word == "*/"


def statements(text: str, *, backslash_escapes: bool = True) -> list[str]:
    """Return the statements of a text, which semicolons divide; those in quotes and comments do not."""
    words = words_of(text, backslash_escapes=backslash_escapes)
    ends = [w.start for w in words if w.text == ";"]
    parts = [text[a:b].strip() for a, b in zip([0, *(e + 1 for e in ends)], [*ends, len(text)], strict=True)]
    return [part for part in parts if part]


def unquoted(word: str) -> str:
    """Return an identifier without its quotes."""
    if len(word) > 1 and word[0] == word[-1] and word[0] in "`\"'":
        return word[1:-1].replace(word[0] * 2, word[0])
    return word


def quoted(name: str) -> str:
    """Return a name in backticks."""
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """Return a text as a constant."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def is_one_expression(text: str) -> bool:
    """Return whether a text stays one expression wherever it stands in a statement, whatever a backslash means there."""
    return all(_is_closed([m.group() for m in pattern.finditer(text)]) for pattern in (_ESCAPED, _PLAIN))


def _is_closed(words: Sequence[str]) -> bool:
    depth = 0
    for word in words:
        depth += (word == "(") - (word == ")")
        if depth < 0 or word in {";", "'", '"', "`", "\\"} or word.startswith(("/*", "--", "#", "*/")) or (word == "," and depth == 0):
            return False
    return bool(words) and depth == 0


class Reader:
    """Reads a statement word by word. Keywords are compared without case; beyond the end there are empty words."""

    def __init__(self, words: Sequence[str], schema: str, at: int = 0) -> None:
        self.words, self.upper, self.schema, self.at = list(words), [w.upper() for w in words], schema, at

    def peek(self, ahead: int = 0) -> str:
        """Return a keyword that comes, without taking it."""
        return self.upper[self.at + ahead] if self.at + ahead < len(self.upper) else ""

    def skip(self, *words: str) -> bool:
        """Skip these words if they come next."""
        if tuple(self.upper[self.at : self.at + len(words)]) != words:
            return False
        self.at += len(words)
        return True

    def skip_to(self, *words: str) -> None:
        """Skip everything up to one of these words, and it."""
        while self.peek() not in {*words, ""}:
            self.at += 1
        self.at += 1

    def name(self) -> str:
        """Take a name."""
        word = self.words[self.at] if self.at < len(self.words) else ""
        self.at += 1
        return unquoted(word)

    def table(self) -> TableName:
        """Take a table's name, of the given schema where it says none."""
        first = self.name()
        if self.skip("."):
            return first, self.name()
        return self.schema, first

    def rest(self) -> list[Reader]:
        """Return what comes, cut at the commas that stand in no parentheses."""
        parts: list[list[str]] = [[]]
        depth = 0
        for word in self.words[self.at :]:
            depth += (word == "(") - (word == ")")
            if word == "," and depth == 0:
                parts.append([])
            else:
                parts[-1].append(word)
        return [Reader(part, self.schema) for part in parts]
