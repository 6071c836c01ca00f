"""Files that only their user can read: what was captured, and what lets others in.

The mode is given when a file is made, so there is no moment at which others could open it. What another user made stays theirs, whatever
its mode is. Runs anywhere.
"""

from __future__ import annotations

import os
from pathlib import Path


def open_private(path: str, flags: int) -> int:
    """Open a file, making it for this user alone; an ``opener`` for ``open``."""
    return os.open(path, flags, 0o600)


def create_private(file: Path) -> None:
    """Make an empty file for this user alone, unless it is there."""
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))


def is_ours(path: Path) -> bool:
    """Return whether no other user owns a file or directory, or the link that leads to it; root may do as it likes anyway."""
    return {path.lstat().st_uid, path.stat().st_uid} <= {0, os.getuid()}
