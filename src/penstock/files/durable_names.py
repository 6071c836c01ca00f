"""Names of files that survive a crash of the machine. Runs anywhere.

A file that is synced is not yet found again: its name is kept by its directory, which is synced apart.
"""

from __future__ import annotations

import os
from pathlib import Path


def sync_directory(directory: Path) -> None:
    """Make the names that were given, or taken away, in a directory durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
