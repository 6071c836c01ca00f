"""Keeps what a process has imported out of its search for garbage.

After every call Spark's daemons look through all objects of their process for garbage, and nearly all of them are modules that stay: that
took longer than the call. Runs in the processes beside the driver.
"""

from __future__ import annotations

import functools
import gc


@functools.cache
def keep_imported() -> None:
    """Count everything that is there now as permanent, once per process."""
    gc.freeze()
