"""Reads and copies of raw memory for kernels, by address.

Numba counts references to every array that a helper function is given, with atomic instructions that cost more than a varint. Kernels
that walk bytes one by one therefore pass addresses. There is no check here: the caller has compared every position with the end
of its buffer before, and keeps the buffer alive. Runs in the log service.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_BYTE = ir.IntType(8)
_WORD = ir.IntType(64)


def _pointer(builder: Any, address: Any, kind: ir.Type) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


@intrinsic  # type: ignore[untyped-decorator]
def load_u8(typing: Any, address: Any) -> Any:
    """Return the byte at an address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(builder, args[0], _BYTE))

    return types.uint8(types.uintp), codegen


@intrinsic  # type: ignore[untyped-decorator]
def load_u64(typing: Any, address: Any) -> Any:
    """Return the eight bytes at an address, which need not be aligned, as a little-endian number."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(builder, args[0], _WORD), align=1)

    return types.uint64(types.uintp), codegen


@intrinsic  # type: ignore[untyped-decorator]
def store_u64(typing: Any, address: Any, value: Any) -> Any:
    """Write eight bytes at an address, which need not be aligned, as a little-endian number."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], _pointer(builder, args[0], _WORD), align=1)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uint64), codegen


@intrinsic  # type: ignore[untyped-decorator]
def copy_bytes(typing: Any, target: Any, source: Any, size: Any) -> Any:
    """Copy bytes that do not overlap."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target_pointer = _pointer(builder, args[0], _BYTE)
        source_pointer = _pointer(builder, args[1], _BYTE)
        cgutils.raw_memcpy(builder, target_pointer, source_pointer, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.uintp, types.uintp, types.uintp), codegen
