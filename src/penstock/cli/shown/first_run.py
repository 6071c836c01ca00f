"""What the first run of an installation shows: it compiles the kernels before anything waits for them, and says so step by step.

Invariant: where they are compiled already, nothing is shown and nothing waits. Runs in verbs that capture or deliver.
"""

from __future__ import annotations

from penstock.cli.shown.logs import tell
from penstock.kernels.compiled_mark import mark_file
from penstock.server.warm_kernels import warm_kernels


def prepare_first_run() -> None:
    """Compile what was never compiled here, on standard error step by step."""
    if mark_file().is_file():
        return
    tell("first run of this installation: compiling kernels for this processor, once (about a minute)")
    warm_kernels(lambda number, total, what: tell(f"  compiling {number}/{total}: {what}"))
