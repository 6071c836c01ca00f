"""The mark that says that every kernel was compiled here: by this version, this Python and this numba, for this processor.

It lies with the compiled kernels, so that it goes where they go. Invariant: without it everything works, only a first batch waits. Runs
anywhere.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import llvmlite.binding
import numba

import penstock
from penstock.kernels.memory import signed


def mark_file() -> Path:
    """Return where the mark of this installation is or would be."""
    made_by = (penstock.__version__, sys.version, numba.__version__, llvmlite.binding.get_host_cpu_name())
    name = hashlib.sha256("\0".join(made_by).encode()).hexdigest()[:16]
    return Path(signed.stats.cache_path, f"penstock-{name}.compiled")  # type: ignore[attr-defined]
