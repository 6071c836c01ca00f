"""A target in a directory of this machine, seen without following links: what lies in it, and what does not belong in any target.

Stores follow links, which is what an operator who moved a folder wants of a reader. Whoever deletes, or says what a target holds, must not:
a link leads to files of somebody else. Invariant: nothing outside the directory is looked at. Runs anywhere.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_STAGED = re.compile(r"#\d+\Z")
"""How a store ends the names of files that are being written."""
_UNNAMEABLE = re.compile(r"[\x00-\x1f\x7f]")


def walk(root: Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the paths of the files below a directory, and what else is there: where, and what it is."""
    files: list[str] = []
    strangers: list[tuple[str, str]] = []
    for folder, directories, names in os.walk(os.fsencode(root)):
        below = os.fsdecode(os.path.relpath(folder, os.fsencode(root)))
        prefix = "" if below == "." else f"{below}/"
        for name in [*directories]:
            path = prefix + os.fsdecode(name)
            why = _why_not(os.path.join(folder, name), os.fsdecode(name), is_folder=True)
            if why:
                strangers.append((_shown(path), why))
                directories.remove(name)
        for name in names:
            path = prefix + os.fsdecode(name)
            why = _why_not(os.path.join(folder, name), os.fsdecode(name), is_folder=False)
            if why:
                strangers.append((_shown(path), why))
            elif not _STAGED.search(path):
                files.append(path)
    return sorted(files), sorted(strangers)


def is_linked(root: Path, path: str) -> bool:
    """Return whether a link stands on the way from a directory to a path below it."""
    return os.path.realpath(root / path) != os.path.join(os.path.realpath(root), path)


def _why_not(full: bytes, name: str, *, is_folder: bool) -> str:
    if os.path.islink(full):
        return f"a link to {_shown(os.fsdecode(os.readlink(full)))}; what it leads to is not part of the target"
    if not is_folder and not os.path.isfile(full):
        return "neither a file nor a directory"
    if _UNNAMEABLE.search(name) or any("\udc80" <= c <= "\udcff" for c in name):
        return "a name that no object can have"
    return ""


def _shown(path: str) -> str:
    return path.encode("utf-8", "backslashreplace").decode()
