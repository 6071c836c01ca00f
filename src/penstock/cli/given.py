"""What verbs take that may hold secrets: URIs, and files of settings with URIs in them. Runs where commands are given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from penstock.config.loader import read_assignments, read_toml
from penstock.library.places import given, uri_of
from penstock.settings.loader import merge


class _Uri(click.ParamType[str]):
    """A URI whose secrets may stand in the environment or in a file, or be asked for."""

    name = "uri"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the URI with its secrets; a path is that of a file or folder here."""
        return given().resolve(uri_of(str(value)))


URI = _Uri()


def read_tree(file: Path | None, assignments: Iterable[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a TOML file with their secrets, over them those of ``--set``, over both what other options say.

    A sink may be nothing but its URI. Options that are None were not given.
    """
    trees = [resolve_tree(read_toml(file)) if file else {}, read_options(assignments)]
    of_file, of_options = (tree | {"sink": {"uri": tree["sink"]}} if isinstance(tree.get("sink"), str) else tree for tree in trees)
    said = {key: value for key, value in given.items() if value is not None}
    # One target on the line takes the place of several in the file, and several that of one.
    hidden = {"sink"} & of_file.keys() if "sinks" in said else {"sinks"} & of_file.keys() if "sink" in said else set()
    return merge(merge({key: value for key, value in of_file.items() if key not in hidden}, of_options), said)


def read_options(texts: Iterable[str]) -> dict[str, Any]:
    """Return the tree of options like ``sink.csv.delimiter=;`` with its secrets."""
    return resolve_tree(read_assignments(texts))


def read_rules(**given: Iterable[str]) -> dict[str, Any] | None:
    """Return the filter of options like ``--where 'shop.orders=amount > 10'``, a rule for each pattern; None where there are none."""
    rules: dict[str, dict[str, Any]] = {}
    for field, texts in given.items():
        for text in texts:
            pattern, sign, expression = text.partition("=")
            if not sign or not expression.strip():
                raise click.BadParameter(f"--{field} takes PATTERN=EXPRESSION, not {text!r}")
            rules.setdefault(pattern.strip(), {"tables": [pattern.strip()]})[field] = expression.strip()
    return {"rules": list(rules.values())} if rules else None


def filter_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the options of a feed's filter that fit on a line."""
    where = click.option("--where", "wheres", multiple=True, metavar="PATTERN=CONDITION", help="Rows that are kept, in Spark SQL. Repeat.")
    select = click.option("--select", "selects", multiple=True, metavar="PATTERN=LIST", help="Columns, in Spark SQL. Repeat.")
    return where(select(command))


def resolve(text: str) -> str:
    """Return a text with the secrets that it names."""
    return given().resolve(text)


def resolve_tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the secrets that they name."""
    resolved: dict[str, Any] = given().resolve_tree(tree)
    return resolved
