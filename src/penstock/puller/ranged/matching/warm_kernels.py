"""Compiles the puller's kernels before the first message needs them.

Numba compiles on the first call, which takes seconds on a machine that never ran the kernels (later processes load them from a cache). Done
inside a receive loop, that would look like a silent stream. Runs in the log service when it starts, and at set-up.
"""

from __future__ import annotations

from penstock.puller.ranged.matching.matcher import Entries, RegionMatcher
from penstock.puller.ranged.matching.wire_scan import scan_message
from penstock.source.proto import cdc_pb2

_PREWRITES = 200
"""Enough that the table of prewrites grows once with live entries in it, and its arena too."""


def warm_kernels() -> None:
    """Send small messages through every kernel. Cheap when they are compiled already."""
    rows = [
        cdc_pb2.Event.Row(type=cdc_pb2.Event.PREWRITE, start_ts=1, op_type=cdc_pb2.Event.Row.PUT, key=b"%d" % i, value=bytes(100))
        for i in range(_PREWRITES)
    ]
    commit = cdc_pb2.Event.Row(type=cdc_pb2.Event.COMMIT, start_ts=1, commit_ts=2, key=b"0")
    matcher = RegionMatcher(b"", b"~")
    # Commits before INITIALIZED are kept in columns of another layout, for which Numba compiles once more; few rows and many have kernels
    # of their own.
    for part in ([commit], [commit] * 40, [cdc_pb2.Event.Row(type=cdc_pb2.Event.INITIALIZED)], rows[:10], rows[10:], [commit]):
        event = cdc_pb2.Event(region_id=1, request_id=1, entries=cdc_pb2.Event.Entries(entries=part))
        message = cdc_pb2.ChangeDataEvent(events=[event], resolved_ts=cdc_pb2.ResolvedTs(regions=[1], ts=1, request_id=1))
        scanned = scan_message(message.SerializeToString())
        matcher.feed(Entries.of(scanned, 0, len(scanned.rows)))
