"""Reads, writes and copies of raw memory for kernels, by address.

Numba counts references to every array that a helper function is given, with atomic instructions that cost more than a varint. Kernels
that walk bytes one by one therefore pass addresses. There is no check here: the caller has compared every position with the end
of its buffer before, and keeps the buffer alive. No address needs to be aligned; numbers are little-endian. Runs anywhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from penstock.kernels.jit import kernel


def _pointer(builder: Any, address: Any, bits: int) -> Any:
    return builder.inttoptr(address, ir.IntType(bits).as_pointer())


def _loader(bits: int, kind: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def load(typing_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(_pointer(builder, args[0], bits), align=1)

        return kind(types.uint64), codegen

    return load


def _storer(bits: int, kind: Any) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.store(args[1], _pointer(builder, args[0], bits), align=1)
            return context.get_dummy_value()

        return types.void(types.uint64, kind), codegen

    return store


load_u8, load_i8 = _loader(8, types.uint8), _loader(8, types.int8)
load_u16, load_i16 = _loader(16, types.uint16), _loader(16, types.int16)
load_u32, load_i32 = _loader(32, types.uint32), _loader(32, types.int32)
load_u64, load_i64 = _loader(64, types.uint64), _loader(64, types.int64)
store_u8, store_u16, store_u64 = _storer(8, types.uint8), _storer(16, types.uint16), _storer(64, types.uint64)


@intrinsic  # type: ignore[untyped-decorator]
def copy_bytes(typing: Any, target: Any, source: Any, size: Any) -> Any:
    """Copy bytes that do not overlap."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        cgutils.raw_memcpy(builder, _pointer(builder, args[0], 8), _pointer(builder, args[1], 8), args[2], 1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), codegen


@kernel
def signed(value: Any) -> int:
    """Return a number or an address as a signed number, because numba makes a float of the sum of a signed and an unsigned one."""
    return np.int64(value)  # type: ignore[return-value]
