"""The directory of one server process: who uses it, and what lies where.

Invariant: one process at a time, by a lock that the operating system drops when the process dies. So a process that has the lock knows
that every earlier user of the directory is gone, and may take over its leases at once. Runs in the server.
"""

from __future__ import annotations

import fcntl
import socket
from pathlib import Path
from typing import IO

from penstock.model.errors import PenstockError


class DataDirectory:
    """An open, locked data directory."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] = (self.path / "lock").open("a")
        except OSError as error:
            raise PenstockError(
                "CONFIG_INVALID",
                f"data-dir: {self.path}: {error.strerror}",
                "Choose a directory that this user can write, with --data-dir.",
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise PenstockError(
                "CONFIG_INVALID", f"data-dir: {self.path} is in use by another server", "Stop it, or choose another --data-dir."
            ) from None

    @property
    def store(self) -> Path:
        """Return where the event store lies."""
        return self.path / "store"

    def owner(self, name: str | None, fresh_id: str) -> str:
        """Return the name under which this directory's server holds leases: stable, so that its successor recognises them."""
        file = self.path / "server-id"
        if not file.exists():
            partial = file.with_suffix(".new")
            partial.write_text(fresh_id, encoding="ascii")
            partial.replace(file)
        return f"{name or socket.gethostname()}-{file.read_text(encoding='ascii').strip()}"

    def close(self) -> None:
        """Give the directory free."""
        self._lock.close()
