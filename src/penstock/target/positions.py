"""A dispatcher's position in a storage target: the last file numbers of its directories, and which version each table version writes to.

Invariant: a position is a flat table of numbers, so that the meta database keeps it without knowing what it means. Runs on executors and
beside the driver.
"""

from __future__ import annotations

from collections.abc import Mapping

_SCHEMA_KEY = "schema/"


def position_key(version: int, date: str, dispatcher: str) -> str:
    """Return under which key a position holds the last number of a directory.

    The names of a table's files change when it is split or made whole again, and each naming counts on its own.
    """
    return f"{version}/{date}/{dispatcher}" if dispatcher else f"{version}/{date}"


def schema_key(table_version: int) -> str:
    """Return under which key a position holds the directory version of a table version."""
    return f"{_SCHEMA_KEY}{table_version}"


def newest_directory(position: Mapping[str, int]) -> tuple[tuple[int, str], int] | None:
    """Return version and date of a position's newest directory, and its last number; None where nothing was written."""
    found = [(_directory(key), number) for key, number in position.items() if not key.startswith(_SCHEMA_KEY)]
    return max(found, key=lambda one: one[0], default=None)


def shortened(position: Mapping[str, int], last_key: str) -> dict[str, int]:
    """Return what still counts of a position after a file of this key: the numbers of its directory, and the newest of its versions."""
    version, date = _directory(last_key)
    numbers = {k: n for k, n in position.items() if not k.startswith(_SCHEMA_KEY) and _directory(k) == (version, date)}
    newest = max(int(k.removeprefix(_SCHEMA_KEY)) for k, v in position.items() if k.startswith(_SCHEMA_KEY) and v == version)
    return {schema_key(newest): version, **numbers}


def _directory(key: str) -> tuple[int, str]:
    version, date = key.split("/")[:2]
    return int(version), date
