"""The directory of one server process: who uses it, and what lies where.

Invariant: one process at a time, by a lock that the operating system drops when the process dies. So a process that has the lock takes
over the leases of earlier users of the directory at once. One of them may live all the same, where the directory is a copy: so each
process has a name of its own, and what the other one held is fenced. What was captured lies here, and credentials of feeds: no other user
of the machine may look inside. Runs in the server.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import shutil
import socket
from pathlib import Path
from typing import IO

from penstock.files.private_files import is_ours, open_private
from penstock.meta.transactions.servers import PROCESS_SIGN
from penstock.model.errors import PenstockError

log = logging.getLogger(__name__)

SERVER_ID = "server-id"
SOURCES = "sources"
"""Where the sources with a name have a directory each."""
_PROCESS_CHARS = 8


class DataDirectory:
    """An open, locked data directory."""

    def __init__(self, path: Path, *, tentative: bool = False) -> None:
        """With ``tentative`` a directory that is made here goes again, unless ``keep`` is called."""
        self.path = path.absolute()
        self._made = [one for one in (self.path, *self.path.parents) if not one.exists()] if tentative else []
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _keep_others_out(self.path)
            self._lock: IO[str] = open(self.path / "lock", "a", encoding="ascii", opener=open_private)  # noqa: SIM115 - held until the end
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
        """Return where the event store of the source without a name lies."""
        return self.path / "store"

    def store_of(self, source: str) -> Path:
        """Return where the event store of a source lies; beside it there is room for more, as in a data directory of its own."""
        return self.path / SOURCES / source / "store" if source else self.store

    def owner(self, name: str | None, fresh_id: str) -> str:
        """Return the name under which this process holds leases; its successor in this directory recognises them by ``home_of``.

        ``fresh_id`` is random: what names the process, and the directory as well where that has no name yet.
        """
        file = self.path / SERVER_ID
        if not file.exists():
            partial = file.with_suffix(".new")
            with open(partial, "w", encoding="ascii", opener=open_private) as sink:
                sink.write(fresh_id)
            partial.replace(file)
        return f"{name or socket.gethostname()}-{file.read_text(encoding='ascii').strip()}{PROCESS_SIGN}{fresh_id[:_PROCESS_CHARS]}"

    def keep(self) -> None:
        """Note that somebody works in the directory: it stays."""
        self._made = []

    def close(self) -> None:
        """Give the directory free; where it was made here and nobody came to work in it, it is gone."""
        if self._made:
            shutil.rmtree(self.path, ignore_errors=True)
            for parent in self._made[1:]:
                with contextlib.suppress(OSError):
                    parent.rmdir()
        self._lock.close()


def _keep_others_out(path: Path) -> None:
    """Close the directory to other users; where root owns it, who gave it to this user, say so. Nobody else's will do."""
    if not is_ours(path):
        raise PenstockError(
            "CONFIG_INVALID",
            f"data-dir: {path} belongs to another user, who reads and replaces what lies there",
            "Choose a directory of your own with --data-dir, or give it to this user (chown).",
        )
    if path.stat().st_mode & 0o077:
        try:
            path.chmod(0o700)
        except PermissionError:
            log.warning("other users can look into the data directory", extra={"path": str(path), "do": "chmod 700"})
