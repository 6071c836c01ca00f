"""The names and texts of what sinks count, whatever their target. Runs on executors, beside the driver and in the server."""

from __future__ import annotations

SPOOL_BYTES = "spool_bytes"
SPOOL_ITEMS = "spool_items"
WAKE_CALLS = "wake_calls_total"
WAKE_SUPPRESSED = "wake_suppressed_total"
FLUSH_COUNT = "flush_count"
FLUSH_DURATION = "flush_duration_seconds"
FLUSH_FILE_SIZE = "flush_file_size_bytes"
DDL_DRAIN_DURATION = "ddl_drain_duration_seconds"
DDL_AFFECTED = "ddl_affected_dispatchers"
DDL_WAIT_ENCODE = "ddl_drain_wait_encode_seconds"
DDL_WAIT_REMOTE = "ddl_drain_wait_remote_seconds"
SPOOL_SPILLED_BYTES = "spool_spilled_bytes_total"
DEAD_LETTERS = "dead_letters_total"

TEXTS = {
    SPOOL_BYTES: "Bytes in the spool, memory and disk: the most that any task held.",
    SPOOL_ITEMS: "Items in the spool: the most that any task held.",
    WAKE_CALLS: "Events whose dispatcher was woken.",
    WAKE_SUPPRESSED: "Events whose wake was held back above the high watermark.",
    FLUSH_COUNT: "Files flushed, by reason.",
    FLUSH_DURATION: "From taking a file to its index in the target, by reason.",
    FLUSH_FILE_SIZE: "Size of flushed files before compression.",
    DDL_DRAIN_DURATION: "From a DDL's arrival at a dispatcher to all before it in the target.",
    DDL_AFFECTED: "Dispatchers that drained for a DDL.",
    DDL_WAIT_ENCODE: "The part of a drain until all before the DDL was encoded.",
    DDL_WAIT_REMOTE: "The part of a drain until all before the DDL was in the target.",
    SPOOL_SPILLED_BYTES: "Bytes that went from the spool's memory to its disk.",
    DEAD_LETTERS: "Messages that the target refused for good, and that were put aside.",
}
