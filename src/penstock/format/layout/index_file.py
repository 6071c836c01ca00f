"""Index files: one line with the base name of the last data file of a directory, so that published numbers are never used again.

Owns the text and the rule by which a writer that lost its progress finds its next number. Invariant: a number whose data file exists
is never handed out. Runs on executors and wherever a target is read.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.format.layout.paths import Layout
from penstock.model.errors import PenstockError


def render_index(layout: Layout, number: int, dispatcher: str = "") -> bytes:
    """Return the content of the index file whose last data file has this number."""
    return f"{layout.data_name(number, dispatcher)}\n".encode()


def parse_index(layout: Layout, content: bytes, path: str, dispatcher: str = "") -> int:
    """Return the last number that an index file names."""
    text = content.decode("utf-8", errors="replace")
    name = text.rstrip("\r\n")
    # What stands there instead is not repeated: the store may have sent what only this machine can read.
    wrong = PenstockError("FILE_MALFORMED", f"{path}: line 1: not the name of a data file of dispatcher {dispatcher or 'none'}")
    try:
        found, number = layout.parse_data_name(name)
    except PenstockError:
        raise wrong from None
    if found != dispatcher or "\n" in name:
        raise wrong
    return number


def next_number(indexed: int, exists: Callable[[int], bool]) -> int:
    """Return the first free number of a directory: the indexed one if its file is absent, else the first free one after it."""
    number = max(indexed, 1)
    while exists(number):
        number += 1
    return number
