from __future__ import annotations

from penstock.puller.ranged.matching import matcher, prewrite_table, wire_scan
from penstock.puller.ranged.matching.warm_kernels import warm_kernels


def test_every_kernel_is_compiled() -> None:
    warm_kernels()
    assert len(matcher._match_entries.signatures) >= 2
    assert len(matcher._match_entries_holding_gil.signatures) >= 2
    for kernel in (
        wire_scan._scan_message,
        wire_scan._scan_message_holding_gil,
        matcher._prewrite_needs,
        matcher._match_entries,
        matcher._own_keys,
        prewrite_table._move_slots,
        prewrite_table._move_bytes,
    ):
        assert kernel.signatures
