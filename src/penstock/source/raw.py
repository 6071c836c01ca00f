"""Raw batches: change entries as columns, before a source decodes their values.

The region event processor emits one raw batch per region event; the source's ``RowDecoder`` turns it into change batches and DDL
events. No Python object per entry. Runs in the log service.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

RAW_SCHEMA = pa.schema(
    [
        pa.field("commit_ts", pa.uint64(), False),
        pa.field("start_ts", pa.uint64(), False),
        pa.field("op", pa.uint8(), False),
        pa.field("key", pa.binary(), False),
        pa.field("value", pa.binary(), True),
        pa.field("old_value", pa.binary(), True),
    ]
)
RAW_PUT = 1
RAW_DELETE = 2


class RawBatch(msgspec.Struct, frozen=True):
    """Committed entries of one region, in the order in which the region gave them."""

    region_id: int
    entries: pa.RecordBatch
    """Of ``RAW_SCHEMA``. ``op`` is RAW_PUT or RAW_DELETE; ``value`` is null for a delete, ``old_value`` for an insert."""

    @property
    def nbytes(self) -> int:
        """Return the weight of the batch against the in-flight quota; at least 1."""
        return max(1, int(self.entries.nbytes))
