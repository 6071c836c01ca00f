from __future__ import annotations

from penstock.puller import matcher, prewrite_table, wire_scan
from penstock.puller.warm_kernels import warm_kernels


def test_every_kernel_is_compiled() -> None:
    warm_kernels()
    assert len(matcher._match_entries.signatures) >= 2
    for kernel in (wire_scan._scan, matcher._match_entries, matcher._copy_strings, prewrite_table._rebuild):
        assert kernel.signatures
