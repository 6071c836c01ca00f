"""The command ``penstock``: its verbs, and how errors look.

A verb's module is imported only when the verb is used, so that ``--help`` answers at once. An error is two lines on stderr, what and
what to do, or one document with ``--output json``, and a traceback only with ``--debug``. Exit codes are those of
``docs/exit-codes.md``. Runs anywhere.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import io
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import TextIO

import click

import penstock
from penstock.cli.shown.logs import LEVELS, LOG_FORMATS, configure_logging
from penstock.cli.shown.output import show_error, show_usage_error, wanted_format
from penstock.model.errors import ErrorKind, PenstockError

# Of every verb the room where it lives and what it does, in the order in which a user meets them.
VERBS = {
    "demo": ("demo", "From a database to verified files in one command."),
    "run": ("feeds", "One command from a database to files or another target."),
    "doctor": ("feeds", "Check that a database allows capture, and say what fixes it."),
    "tables": ("feeds", "List the tables of a database: key, size, whether they will be captured."),
    "server": ("servers", "Run a server: capture a source and run feeds. Drain it."),
    "status": ("servers", "Show a server and its feeds in one glance; exits 1 if something is wrong."),
    "feed": ("feeds", "Create, list, show, resume and remove feeds."),
    "sql": ("feeds", "Create, show and change feeds by SQL: a shell, statements or scripts."),
    "subscribe": ("feeds", "Subscribe one table over gRPC, under a name that stands for one purpose."),
    "verify": ("feeds", "Compare a feed's files with the upstream, row by row."),
    "logs": ("servers", "Show the last lines of a server's log, or of one feed; follow them."),
    "config": ("servers", "Check a configuration, or show what holds and where it comes from."),
    "page": ("servers", "Print an address that opens a server's web page, signed in."),
    "token": ("servers", "Make, list and revoke tokens for the API of a server."),
    "meta": ("servers", "Back up, restore, check and upgrade the meta database of servers."),
    "store": ("servers", "Look into an event store: list, show, check, compact, collect."),
    "replay": ("targets", "Apply a storage target to a database, and go on where it stopped."),
    "receive": ("targets", "Receive what feeds post to an HTTP target: check it, print it, keep it."),
    "package": ("servers", "Make an archive of this installation for executors on other machines."),
    "lake": ("targets", "Compact Delta and Iceberg tables of a target, expire old versions."),
    "storage": ("targets", "List, check and expire the files of a storage target."),
    "completion": ("servers", "Print what completes this command line in bash, zsh or fish."),
    "dataserver": ("servers", "Run the embedded range-sharded data server."),
}
EXIT_FAILED, EXIT_OPERATOR, EXIT_SPARK_LOST, EXIT_AGAIN, EXIT_INTERRUPTED, EXIT_UNREAD = 1, 2, 4, 75, 130, 141
_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What a disk says that takes no more; Penstock broke no rule of its own then."""


class LazyGroup(click.Group):
    """A group whose commands live in ``penstock.cli.<room>.<verb>`` and are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs, in the order of their table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a verb."""
        if cmd_name not in VERBS:
            return None
        room, _ = VERBS[cmd_name]
        command = getattr(importlib.import_module(f"penstock.cli.{room}.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a verb; of one that there is none of, name the nearest."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], VERBS)
            if not near or args[0] in VERBS:
                raise
            raise click.UsageError(f"{error.message} Did you mean {' or '.join(near)}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb, what) for verb, (_, what) in VERBS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(penstock.__version__, "--version", prog_name="penstock")
@click.option("--debug", is_flag=True, help="Show debug logs, and tracebacks of errors.")
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    envvar="PENSTOCK_LOG_LEVEL",
    help="What is logged to stderr.  [default: warning; info of a server]",
)
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="text",
    show_default=True,
    envvar="PENSTOCK_LOG_FORMAT",
    help="json: one object a line.",
)
@click.pass_context
def cli(ctx: click.Context, debug: bool, log_level: str | None, log_format: str) -> None:
    """Change data capture on Spark: every row change of a database, in order, to files, exactly once.

    \b
    Start here:
      penstock demo                                        the whole path on this machine
      penstock run --source mysql://cdc@db:3306 --table 'shop.*' --sink file:///tmp/shop
    \b
    By hand, each in its own terminal:
      penstock dataserver --port 20160 --workload          a database, with changes
      penstock server --source dataserver://127.0.0.1:20160
      penstock feed create orders --table 'shop.*' --sink file:///tmp/orders
      penstock feed show orders
    """  # noqa: D301 - \b is click's mark for text that is not wrapped
    ctx.obj = {"debug": debug}
    level = "debug" if debug else log_level
    configure_logging(logging.getLevelNamesMapping()[(level or "warning").upper()], log_format)
    # What was asked for holds in every verb.
    ctx.obj["log_level"] = level


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    # Every verb ends by both in the same way, and tidies up; those that run a server hear them themselves.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal has no characters for is shown by their numbers.
        sys.stdout.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        try:
            _flush(stream)
        except OSError:
            # It was told already, where it could be; Python would tell it again, and end with a code of its own.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def run(argv: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    debug, output = "--debug" in argv, wanted_format(argv)
    try:
        result = cli.main(args=list(argv), prog_name="penstock", standalone_mode=False)
        try:
            _flush(sys.stdout)
        except BrokenPipeError:
            result = EXIT_UNREAD
    except PenstockError as error:
        if debug:
            raise
        show_error(error, output, exit_code(error))
        return exit_code(error)
    except click.ClickException as error:
        show_usage_error(error, output, EXIT_OPERATOR)
        return EXIT_OPERATOR
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except SystemExit as ended:
        # So click itself ends: with 0 what a shell asked for to complete a line, otherwise where nobody reads what is written.
        return EXIT_UNREAD if ended.code else 0
    except Exception as error:
        if debug:
            raise
        return _show_unexpected(error, argv, output)
    return result if isinstance(result, int) else 0


def _flush(stream: TextIO | None) -> None:
    # There is none where whoever started this closed it.
    if stream is not None and not stream.closed:
        stream.flush()


def _show_unexpected(error: Exception, argv: Sequence[str], output: str) -> int:
    """Write an error that nobody meant; return the exit code."""
    # Bytes of the command line that are no text stand in it as half surrogates, which nothing can send.
    torn = [word.encode(errors="surrogateescape") for word in argv if any("\ud800" <= char <= "\udfff" for char in word)]
    if torn and isinstance(error, UnicodeEncodeError):
        shown = ", ".join(map(repr, torn))
        show_usage_error(click.UsageError(f"No text in this terminal's encoding: {shown}"), output, EXIT_OPERATOR)
        return EXIT_OPERATOR
    unexpected = _unexpected(error)
    # Where standard error is full too, the exit code is all that can be told.
    with contextlib.suppress(OSError):
        show_error(unexpected, output, exit_code(unexpected))
    return exit_code(unexpected)


def _unexpected(error: Exception) -> PenstockError:
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        return PenstockError("OUTPUT_FAILED", f"{error.filename or 'what this writes'}: {error.strerror}")
    text = f"{type(error).__name__}: {error}"
    return PenstockError("INTERNAL", text, "Run it again with --debug before the verb, and report it.")


def exit_code(error: PenstockError) -> int:
    """Return with what a verb ends that raised an error."""
    if error.code == "SPARK_LOST":
        return EXIT_SPARK_LOST
    if error.kind is ErrorKind.TRANSIENT:
        return EXIT_AGAIN
    return EXIT_FAILED if error.kind in {ErrorKind.CORRUPT, ErrorKind.BUG} else EXIT_OPERATOR


if __name__ == "__main__":
    main()
