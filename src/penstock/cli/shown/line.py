"""Lines on the terminal: what names from elsewhere would make it do is shown instead.

A table, a path or a message of a server may hold anything. Invariant: no control character but the line's end reaches the terminal, and
nothing that turns the direction of text. Runs anywhere.
"""

from __future__ import annotations

import re

import click

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Return a text in which what a terminal would obey stands as an escape."""
    return _OBEYED.sub(lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else f"\\u{ord(found[0]):04x}", text)


def say(text: str, *, err: bool = False) -> None:
    """Write a line."""
    click.echo(visible(text), err=err)
