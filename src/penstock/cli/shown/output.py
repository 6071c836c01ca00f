"""Results and errors for scripts: ``--output json`` and ``yaml``, beside the tables that people read; and results shown again and again.

Invariants: with json or yaml standard output holds the result and nothing else; an error is one document on stderr, in the same format,
whatever went wrong; credentials are masked in it. A result that is watched is one line of JSON, or one document of YAML, for each look.
Runs anywhere.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from penstock.cli.shown.line import say, visible
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import ErrorKind, PenstockError
from penstock.settings.masking import mask_text

_T = TypeVar("_T")
FORMATS = ("table", "json", "yaml")
_OPTION, _LOG_OPTION = "--output", "--log-format"
LINE = "line"
"""The format of errors where the log is JSON and the verb was asked for no other: one line, as each line of the log is."""


def text_of(value: Any, output: str, *, one_line: bool = False) -> str:
    """Return a result as a script reads it."""
    if output == "yaml":
        # Imported here, because most never use it.
        import yaml  # type: ignore[import-untyped]

        text: str = yaml.safe_dump(value, sort_keys=False, explicit_start=one_line, width=140)
        return text.removesuffix("...\n").rstrip("\n")
    return json.dumps(value, indent=None if one_line or output == LINE else 2)


def show_result(value: Any, output: str, line: str | None = None) -> None:
    """Write a result; for people, one line."""
    click.echo(text_of(value, output) if output != "table" else visible(line or ""))


def wanted_format(argv: Sequence[str]) -> str:
    """Return the format that a command line asks for, also where it makes no sense otherwise."""
    asked = _value_of(_OPTION, argv, FORMATS)
    return asked or (LINE if _value_of(_LOG_OPTION, argv, ("text", "json")) == "json" else "table")


def _value_of(option: str, argv: Sequence[str], values: Sequence[str]) -> str | None:
    for at, word in enumerate(argv):
        value = argv[at + 1] if word == option and at + 1 < len(argv) else word.removeprefix(f"{option}=")
        if value != word and value in values:
            return value
    return None


def show_error(error: PenstockError, output: str = "table", exit_code: int | None = None) -> None:
    """Write an error the way every verb does, to stderr."""
    lines = mask_text(error.detail).splitlines() or [""]
    # A statement is shown with the place in it: its lines are one problem.
    one = len(lines) == 1 or error.code == "SQL_INVALID"
    if output != "table":
        message = "\n".join(lines) if one else f"{len(lines)} problems"
        body = {"code": error.code, "kind": error.kind.value, "message": message, "problems": [message] if one else lines}
        click.echo(text_of({"error": body | {"hint": mask_text(error.hint), "exit_code": exit_code}}, output), err=True)
        return
    say(f"error: [{error.code}] {lines[0] if one else f'{len(lines)} problems'}", err=True)
    for line in lines[1:] if one else lines:
        say(f"  {line}", err=True)
    say(f"hint: {mask_text(error.hint)}", err=True)


def show_usage_error(error: click.ClickException, output: str, exit_code: int) -> None:
    """Write what is wrong with a command line; where a verb is missing, those that there are."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return
    if output == "table":
        error.show()
        return
    text = error.format_message()
    body = {"code": "USAGE", "kind": ErrorKind.INVALID.value, "message": text, "problems": [text], "hint": "See it with --help."}
    click.echo(text_of({"error": body | {"exit_code": exit_code}}, output), err=True)


def watched(look: Callable[[], _T], draw: Callable[[_T], None], output: str, interval_s: float | None, clock: Clock | None = None) -> _T:
    """Show what a look finds, once or, with an interval, until interrupted; a server that is away for a while is waited for then."""
    if interval_s is None:
        found = look()
        _show_once(found, draw, output)
        return found
    clock, never = clock or SystemClock(), threading.Event()
    while True:
        try:
            found = look()
        except PenstockError as error:
            if error.kind is not ErrorKind.TRANSIENT:
                raise
            show_error(error, output)
        else:
            if output == "table":
                if sys.stdout.isatty():
                    click.clear()
                click.echo(dt.datetime.fromtimestamp(clock.now_ms() / 1000, tz=dt.UTC).isoformat(timespec="seconds"))
                draw(found)
            else:
                click.echo(text_of(found, output, one_line=True))
            sys.stdout.flush()
        clock.wait(never, interval_s)


def _show_once(found: _T, draw: Callable[[_T], None], output: str) -> None:
    if output == "table":
        draw(found)
    else:
        show_result(found, output)
