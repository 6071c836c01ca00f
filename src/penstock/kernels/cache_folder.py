"""Where compiled kernels are kept: beside the modules, else in the user's cache, else in a private folder for temporary files.

Numba knows the first two and refuses to start where it can write to neither, as under a service's user without a home. Invariant: what
is in the folder becomes code of this process, so it belongs to this user and nobody else may write there. Runs anywhere, before the first
kernel.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numba

VARIABLE = "NUMBA_CACHE_DIR"


def ensure_cache_folder() -> None:
    """Give numba, here and in processes that this one starts, a folder that it can write to; nothing to do where it has one."""
    if os.environ.get(VARIABLE):
        return
    users = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "numba")
    spare = spare_folder([Path(__file__).parent / "__pycache__", users], Path(tempfile.gettempdir()))
    if spare is not None:
        os.environ[VARIABLE] = numba.config.CACHE_DIR = str(spare)


def spare_folder(usual: Sequence[Path], temporary: Path) -> Path | None:
    """Return a folder below ``temporary`` where none of the usual ones can be written, else None."""
    if any(map(_is_writable, usual)):
        return None
    folder = temporary / f"penstock-kernels-{os.geteuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    except OSError:
        private = False
    # Somebody else was there first: this process compiles for itself.
    return folder if private else Path(tempfile.mkdtemp(prefix="penstock-kernels-", dir=temporary))


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
