"""The shell of ``penstock sql``: statements that end with a semicolon, a history, and completion of keywords, feeds and settings.

The line is edited by the system's readline. Invariants: what the history keeps holds no secret, because statements are masked before they
are kept, and those that cannot be read are not kept at all; the file is its owner's alone. An error ends a statement and not the shell.
Runs where a user types.
"""

from __future__ import annotations

import contextlib
import readline
from collections.abc import Callable
from pathlib import Path

from penstock.cli.feeds.sql import read_script, show, with_secrets
from penstock.cli.server_client import ServerClient
from penstock.cli.shown.line import say
from penstock.cli.shown.output import show_error
from penstock.config.known_servers import home_directory, write_private
from penstock.config.tree import FeedConfig
from penstock.model.errors import PenstockError
from penstock.server.sql.parser import BEGINNINGS, FEED, FEEDS, KEYWORDS
from penstock.server.sql.tokens import masked_sql, tokens_of
from penstock.settings.loader import known_keys
from penstock.target.settings import OPTION_KEYS

PROMPT, MORE = "penstock> ", "       -> "
HISTORY_MAX = 1_000
_LEAVE = frozenset({"exit", "quit", r"\q"})
_HELP = "Statements end with a semicolon: " + ", ".join(BEGINNINGS) + ". TAB completes; exit leaves. docs/sql.md has them all."


class Shell:
    """Reads statements until the user leaves. Used by one thread."""

    def __init__(self, client: ServerClient, output: str, ask: Callable[[str], str] = input, history: Path | None = None) -> None:
        self._client = client
        self._output = output
        self._ask = ask
        self._file = history
        self._kept: list[str] = []
        self._completions: list[str] = []

    def run(self) -> None:
        """Read and execute statements."""
        self._begin()
        say(_HELP)
        while (text := self._statement()) is not None:
            if text.strip(" ;\n") in {"", "help", "?"}:
                say(_HELP)
                continue
            self.execute(text)

    def execute(self, text: str) -> None:
        """Execute what the user typed, and keep it."""
        self._keep(text)
        try:
            for statement, reads in read_script(text):
                show(self._client.execute(with_secrets(statement), reads=reads), self._output)
        except PenstockError as error:
            show_error(error)

    def complete(self, typed: str, state: int) -> str | None:
        """Return the completion of a word with this number; readline asks for one after the other."""
        if state == 0:
            self._completions = self.completions(readline.get_line_buffer()[: readline.get_begidx()], typed)
        return self._completions[state] if state < len(self._completions) else None

    def completions(self, before: str, typed: str) -> list[str]:
        """Return what a word may become, behind what stands before it."""
        words = before.upper().split()
        known: list[str] = [*KEYWORDS]
        if not words or before.rstrip().endswith(";"):
            known = [*BEGINNINGS]
        elif words[-1] == FEED and words[-2:-1] != ["CREATE"]:
            known = self._feeds()
        elif words[-1] in {"SHOW", "EXPLAIN"} or words[-1] in BEGINNINGS:
            known = [FEED] + ([FEEDS] if words[-1] == "SHOW" else [])
        elif before.count("(") > before.count(")"):
            known = [*known_keys(FeedConfig), *(f"sink.{key}" for key in sorted(OPTION_KEYS))]
        return sorted(f"{word} " for word in known if word.lower().startswith(typed.lower()))

    def _feeds(self) -> list[str]:
        with contextlib.suppress(PenstockError):
            return [feed["name"] for feed in self._client.list_feeds()]
        return []

    def _statement(self) -> str | None:
        """Return what the user typed up to a semicolon; None where there is no more."""
        lines: list[str] = []
        while True:
            try:
                lines.append(self._ask(MORE if lines else PROMPT))
            except EOFError:
                say("")
                return None
            except KeyboardInterrupt:
                say("")
                lines.clear()
                continue
            if len(lines) == 1 and lines[0].strip().rstrip(";").lower() in _LEAVE:
                return None
            text = "\n".join(lines)
            if _is_whole(text):
                return text

    def _begin(self) -> None:
        readline.set_auto_history(False)
        readline.set_completer(self.complete)
        readline.set_completer_delims(" \t\n,;()='\"`")
        readline.parse_and_bind("tab: complete")
        with contextlib.suppress(OSError, UnicodeDecodeError):
            self._file = self._file or home_directory() / "sql_history"
            self._kept = self._file.read_text(encoding="utf-8").splitlines()[-HISTORY_MAX:]
        for line in self._kept:
            readline.add_history(line)

    def _keep(self, text: str) -> None:
        """Add a statement to the history, in memory and in the file, on one line and without its secrets."""
        line = " ".join(masked_sql(text).split())
        if not line or line in self._kept[-1:]:
            return
        readline.add_history(line)
        self._kept = [*self._kept, line][-HISTORY_MAX:]
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(self._file, "".join(f"{one}\n" for one in self._kept).encode())


def _is_whole(text: str) -> bool:
    """Return whether nothing more is to come: a semicolon ends it, or nothing stands there."""
    if text.strip() in {"", "help", "?"}:
        return True
    try:
        tokens = tokens_of(text)
    except PenstockError:
        # A quote is open: it may go on in the next line, unless an empty one says that it does not.
        return text.endswith("\n")
    return len(tokens) < 2 or tokens[-2].is_mark(";")
