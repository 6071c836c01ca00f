"""Reads trees of settings from what a user gives: TOML files and options like ``sink.csv.delimiter=;``. Runs anywhere."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from penstock.model.errors import PenstockError
from penstock.settings.loader import Problems, merge, nested
from penstock.settings.masking import mask_text


def read_toml(file: Path) -> dict[str, Any]:
    """Return the tree of a TOML file; raise ``CONFIG_INVALID`` where it is missing or malformed."""
    try:
        # Some editors begin a file with a mark of its encoding, which is none of its text.
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise PenstockError(
            "CONFIG_INVALID", f"{file}: {error.strerror or 'cannot be read'}", "Name a file that this user can read."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PenstockError("CONFIG_INVALID", f"{file}: {mask_text(str(error))}", "Write it as TOML, in UTF-8: key = value.") from None


def read_assignments(texts: Iterable[str]) -> dict[str, Any]:
    """Return the tree of options like ``sink.csv.delimiter=;``; raise ``CONFIG_INVALID`` with every malformed one."""
    tree: dict[str, Any] = {}
    problems = Problems()
    for text in texts:
        key, equals, value = text.partition("=")
        parts = [part.strip() for part in key.split(".")]
        if not equals or not all(parts):
            problems.add("", f"{key or text!r}: must look like key=value")
            continue
        tree = merge(tree, nested(".".join(parts), value))
    problems.raise_if_any()
    return tree
