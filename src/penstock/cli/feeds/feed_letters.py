"""The verb ``feed dead-letters``: what the target of a feed refused for good, and offering it once more. Runs anywhere."""

from __future__ import annotations

import click

from penstock.cli.options import output_option, server_option
from penstock.cli.server_client import ServerClient
from penstock.cli.shown.line import say
from penstock.cli.shown.output import show_result
from penstock.cli.shown.tables import show_facts
from penstock.model.errors import PenstockError


@click.group("dead-letters")
def letters_group() -> None:
    """List what the target of a feed refused for good, look at it, and offer it once more.

    \b
    Examples:
      penstock feed dead-letters list orders
      penstock feed dead-letters show orders 00447124578304000001-00000001_7-0_3
      penstock feed dead-letters retry orders
    """  # noqa: D301


@letters_group.command("list")
@click.argument("feed_name", metavar="FEED")
@server_option
@output_option
def list_letters(feed_name: str, server_url: str, output: str) -> None:
    """List the names of all, in the order in which they were refused."""
    with ServerClient(server_url) as client:
        names = client.dead_letters(feed_name)
    if output != "table":
        show_result(names, output)
        return
    for name in names:
        click.echo(name)
    if not names:
        say(f"feed {feed_name} has no dead letters")


@letters_group.command()
@click.argument("feed_name", metavar="FEED")
@click.argument("letter")
@server_option
@output_option
def show(feed_name: str, letter: str, server_url: str, output: str) -> None:
    """Show one: why it was refused, and its body as it was posted."""
    with ServerClient(server_url) as client:
        found = client.ask_for_letter(feed_name, letter, "show")
    if output != "table":
        show_result(found, output)
        return
    show_facts([(key, str(value)) for key, value in found.items() if key != "body"])
    say(found["body"])


@letters_group.command()
@click.argument("feed_name", metavar="FEED")
@click.argument("letters", nargs=-1)
@server_option
@output_option
def retry(feed_name: str, letters: tuple[str, ...], server_url: str, output: str) -> None:
    """Offer some once more, or all of them in their order. One that is taken is gone; the first that is not ends it."""
    taken: list[str] = []
    with ServerClient(server_url) as client:
        for letter in letters or client.dead_letters(feed_name):
            try:
                client.ask_for_letter(feed_name, letter, "retry")
            except PenstockError as error:
                raise PenstockError(error.code, f"{error.detail}; {len(taken)} were taken before it", error.hint) from None
            taken.append(letter)
    show_result({"name": feed_name, "taken": taken}, output, f"{len(taken)} dead letters of feed {feed_name} were taken")
