"""What verbs take that may hold secrets: URIs, and files of settings with URIs in them. Runs where commands are given."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import click

from penstock.access.given_uris import GivenUris
from penstock.config.loader import read_assignments, read_toml


class _Uri(click.ParamType[str]):
    """A URI whose secrets may stand in the environment or in a file, or be asked for."""

    name = "uri"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the URI with its secrets."""
        return _given().resolve(str(value))


URI = _Uri()


def read_settings(file: Path | None) -> dict[str, Any]:
    """Return the tree of a TOML file with its secrets, nothing where there is no file."""
    tree: dict[str, Any] = _given().resolve_tree(read_toml(file)) if file else {}
    return tree


def read_options(texts: Iterable[str]) -> dict[str, Any]:
    """Return the tree of options like ``sink.csv.delimiter=;`` with its secrets."""
    tree: dict[str, Any] = _given().resolve_tree(read_assignments(texts))
    return tree


@cache
def _given() -> GivenUris:
    return GivenUris(os.environ, lambda label: str(click.prompt(label, hide_input=True, err=True)))
