"""Files that only their user can read: what was captured, and what lets others in.

The mode is given when a file is made, so there is no moment at which others could open it. What another user made stays theirs, whatever
its mode is. Runs anywhere.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def open_private(path: str, flags: int) -> int:
    """Open a file, making it for this user alone; an ``opener`` for ``open``."""
    return os.open(path, flags, 0o600)


def create_private(file: Path) -> None:
    """Make an empty file for this user alone, unless it is there.

    One that is there is not opened: whoever closes a file gives up every lock that the process has on it, SQLite's too. So it is closed
    before it has its name.
    """
    if file.exists():
        return
    partial = file.with_name(f"{file.name}.{secrets.token_hex(8)}.new")
    os.close(open_private(str(partial), os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    with contextlib.suppress(FileExistsError):
        os.link(partial, file)
    partial.unlink()


def is_ours(path: Path) -> bool:
    """Return whether no other user owns a file or directory, or the link that leads to it; root may do as it likes anyway."""
    return {path.lstat().st_uid, path.stat().st_uid} <= {0, os.getuid()}
