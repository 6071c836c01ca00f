"""Events that say that they are longer than an event can be."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from penstock.source.mysql.event_scan import EventScan
from penstock.source.mysql.tables.table_slots import TableSlots
from penstock.source.mysql.tables.table_versions import TableVersions
from penstock.source.mysql.wire import constants as wire
from penstock.source.mysql.wire import framing
from testing.twins.binlog import BinlogWriter, MemoryEventStream


@pytest.mark.parametrize(("size", "why"), [(0xFFFFFFFF, framing.STOP_BAD), (0x60000000, framing.STOP_BAD), (1 << 20, framing.STOP_END)])
def test_an_event_longer_than_can_be_is_refused_before_its_bytes_are_waited_for(size: int, why: int) -> None:
    writer = BinlogWriter(checksum=False)
    writer.data = bytearray(struct.pack("<IBIIIH", 0, wire.XID, 1, size, 0, 0))
    stream = MemoryEventStream(bytes(writer.data), [len(writer.data)], 0)
    stream.receive(0.0)
    assert EventScan(stream, 1 << 20).run(TableSlots(TableVersions(lambda schema, table: None)), np.zeros((0, 16), dtype=np.uint8)) == why
