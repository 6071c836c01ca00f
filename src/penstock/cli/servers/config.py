"""The verb ``config``: is a file of settings right, and what holds because of it? Opens nothing but the file. Runs anywhere.

A file is a server's, a feed's, or both in one as ``penstock run`` takes it: the keys of a feed at the top and those of a server under
``[server]``. Which one it is, its keys say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from penstock.cli.given import read_options, read_tree
from penstock.cli.options import output_option
from penstock.cli.shown.output import show_result
from penstock.cli.shown.tables import show_table
from penstock.library.one_feed import DEFAULT_NAME, divide
from penstock.model.errors import PenstockError
from penstock.settings.loader import effective, load
from penstock.settings.masking import mask_tree

_FEED_KEYS = frozenset({"tables", "sink", "sinks", "server", "filter"})
_KINDS = ("server", "feed", "run")


class _Value(NamedTuple):
    """A setting that holds, and where it comes from."""

    key: str
    value: Any
    origin: str


@click.group()
def config() -> None:
    """Check a file of settings, or show what holds and where each value comes from.

    \b
    Examples:
      penstock config check server.toml
      penstock config show shop.toml --set flush-interval=1s
    """  # noqa: D301


def _takes_a_file(command: Callable[..., None]) -> Callable[..., None]:
    file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
    kind = click.option("--as", "kind", type=click.Choice(_KINDS), help="What it is the file of.  [default: what its keys say]")
    given = click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="One setting over those of the file. Repeat.")
    return file(kind(given(output_option(command))))


@config.command()
@_takes_a_file
def check(file: Path, kind: str | None, assignments: tuple[str, ...], output: str) -> None:
    """Check a file of settings and say everything that is wrong with it at once. Exits 2 then."""
    kind, _ = _read(file, kind, assignments)
    show_result({"valid": True, "file": str(file), "kind": kind}, output, f"{file} is valid, as the file of a {kind}")


@config.command()
@_takes_a_file
@click.option("--changed", is_flag=True, help="Only what differs from its default.")
def show(file: Path, kind: str | None, assignments: tuple[str, ...], output: str, changed: bool) -> None:
    """Show every setting that holds, and where it comes from: the file, --set or its default. Credentials are masked."""
    _, parts = _read(file, kind, assignments)
    over = set(_paths(read_options(assignments)))
    written = set(_paths(read_tree(file, (), {})))
    found = []
    for prefix, settings in parts:
        for key, value in effective(settings):
            path, held = (f"{prefix}{key}", value) if prefix or key != "sink" else ("sink.uri", value["uri"])
            found.append(_Value(path, _masked(path, held), _origin(path, over, written)))
    shown = [one for one in found if not changed or one.origin != "default"]
    if output != "table":
        show_result([one._asdict() for one in shown], output)
        return
    show_table(("KEY", "VALUE", "FROM"), [(one.key, _text(one.value), one.origin) for one in shown])


def _read(file: Path, kind: str | None, assignments: tuple[str, ...]) -> tuple[str, list[tuple[str, Any]]]:
    """Return what a file is, and its settings as they hold, each with what stands before its keys; raise with every problem."""
    from penstock.config.server_tree import ServerConfig
    from penstock.config.tree import load_feed_config
    from penstock.sink.catalog import settings_of

    tree = read_tree(file, assignments, {})
    kind = kind or ("run" if "server" in tree else "feed" if tree.keys() & _FEED_KEYS else "server")
    problems: list[PenstockError] = []

    def tried(what: Callable[[], Any]) -> Any:
        try:
            return what()
        except PenstockError as error:
            problems.append(error)
            return None

    parts: list[tuple[str, Any]] = []
    if kind != "server":
        given = {"name": DEFAULT_NAME} | {key: value for key, value in tree.items() if key != "server"}
        feed = tried(lambda: load_feed_config(given))
        if feed is not None:
            parts += [("", feed), ("sink.", settings_of(feed.target.uri, feed.target.options)[1])]
    own = tree.get("server")
    if kind == "run" and isinstance(own, Mapping) and tree.get("source") and own.get("source"):
        # Two that differ are told as `penstock run` tells it.
        tried(lambda: divide(tree))
    if kind != "feed":
        server = tree if kind == "server" else _server_part(tree)
        parts.append(
            ("" if kind == "server" else "server.", tried(lambda: load(ServerConfig, server, "" if kind == "server" else "server")))
        )
    if problems:
        lines = [line for error in problems for line in error.detail.splitlines()]
        raise PenstockError(problems[0].code if len(problems) == 1 else "CONFIG_INVALID", "\n".join(lines), problems[0].hint)
    return kind, parts


def _server_part(tree: Mapping[str, Any]) -> Any:
    server = tree.get("server", {})
    return {"source": tree.get("source", "")} | dict(server) if isinstance(server, Mapping) else server


def _paths(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{key}.")


def _origin(path: str, over: set[str], written: set[str]) -> str:
    """Return where a value comes from; that of a key whose parts a file has is the file's."""
    return "--set" if path in over else "file" if path in written else "default"


def _masked(path: str, value: Any) -> Any:
    return mask_tree(value, path.rpartition(".")[2])


def _text(value: Any) -> str:
    return "-" if value is None or value == "" else str(value).lower() if isinstance(value, bool) else str(value)
