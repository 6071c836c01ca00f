"""The command ``penstock``: its verbs, and how errors look.

A verb's module is imported only when the verb is used, so that ``--help`` answers at once. An error is two lines on stderr, what and
what to do, and a traceback only with ``--debug``; the exit code is 2 where the operator can act, 1 where data or Penstock itself is
wrong, 3 where a run caught up but not with every table, 4 where Spark ended under a server. Runs anywhere.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence

import click

import penstock
from penstock.cli.shown.line import say
from penstock.cli.shown.logs import configure_logging
from penstock.model.errors import ErrorKind, PenstockError
from penstock.settings.masking import mask_text

# Of every verb the room where it lives and what it does, in the order in which a user meets them.
VERBS = {
    "demo": ("feeds", "From a database to verified files in one command."),
    "run": ("feeds", "One command from a database to files or another target."),
    "doctor": ("feeds", "Check that a database allows capture, and say what fixes it."),
    "server": ("servers", "Run a server: capture a source and run feeds. Drain it."),
    "feed": ("feeds", "Create, list, show, resume and remove feeds."),
    "sql": ("feeds", "Create, show and change feeds by SQL: a shell, statements or scripts."),
    "subscribe": ("feeds", "Subscribe one table over gRPC, under a name that stands for one purpose."),
    "verify": ("feeds", "Compare a feed's files with the upstream, row by row."),
    "page": ("servers", "Print an address that opens a server's web page, signed in."),
    "token": ("servers", "Make, list and revoke tokens for the API of a server."),
    "meta": ("servers", "Back up, restore, check and upgrade the meta database of servers."),
    "store": ("servers", "Look into an event store: list, show, check, compact, collect."),
    "replay": ("targets", "Apply a storage target to a database, and go on where it stopped."),
    "receive": ("targets", "Receive what feeds post to an HTTP target: check it, print it, keep it."),
    "package": ("servers", "Make an archive of this installation for executors on other machines."),
    "lake": ("targets", "Compact Delta and Iceberg tables of a target, expire old versions."),
    "storage": ("targets", "List, check and expire the files of a storage target."),
    "dataserver": ("servers", "Run the embedded range-sharded data server."),
}
EXIT_FAILED, EXIT_OPERATOR, EXIT_SPARK_LOST, EXIT_INTERRUPTED = 1, 2, 4, 130


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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb, what) for verb, (_, what) in VERBS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(penstock.__version__, "--version", prog_name="penstock")
@click.option("--debug", is_flag=True, help="Show debug logs, and tracebacks of errors.")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:
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
    configure_logging(logging.DEBUG if debug else logging.WARNING)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    debug = "--debug" in argv
    try:
        result = cli.main(args=list(argv), prog_name="penstock", standalone_mode=False)
    except PenstockError as error:
        if debug:
            raise
        show_error(error)
        return exit_code(error)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return EXIT_OPERATOR
    except click.ClickException as error:
        error.show()
        return EXIT_OPERATOR
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except Exception as error:
        if debug:
            raise
        show_error(
            PenstockError("INTERNAL", f"{type(error).__name__}: {error}", "Run it again with --debug before the verb, and report it.")
        )
        return EXIT_FAILED
    return result if isinstance(result, int) else 0


def exit_code(error: PenstockError) -> int:
    """Return with what a verb ends that raised an error."""
    if error.code == "SPARK_LOST":
        return EXIT_SPARK_LOST
    return EXIT_FAILED if error.kind in {ErrorKind.CORRUPT, ErrorKind.BUG} else EXIT_OPERATOR


def show_error(error: PenstockError) -> None:
    """Write an error the way every verb does."""
    lines = mask_text(error.detail).splitlines() or [""]
    if len(lines) == 1 or error.code == "SQL_INVALID":
        say(f"error: [{error.code}] {lines[0]}", err=True)
        for line in lines[1:]:
            say(f"  {line}", err=True)
    else:
        say(f"error: [{error.code}] {len(lines)} problems", err=True)
        for line in lines:
            say(f"  {line}", err=True)
    say(f"hint: {mask_text(error.hint)}", err=True)


if __name__ == "__main__":
    main()
