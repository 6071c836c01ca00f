"""How numeric kernels are compiled: without the GIL, cached on disk, and typed for the checker; the names of the arrays that they take.

Kernels take flat numpy arrays only (numba has no good answer for lists of buffers) and report a bad row by its number instead of raising.
The cache notices a change of a kernel's own module only: whoever changes one that other modules call removes their ``*.nbi`` files.
Runs anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.kernels.cache_folder import ensure_cache_folder

ensure_cache_folder()
F = TypeVar("F", bound=Callable[..., object])
U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

INT32_MAX = (1 << 31) - 1
EMPTY_U8: U8 = np.zeros(0, dtype=np.uint8)


def kernel(function: F) -> F:
    """Compile a function on its first call, or take it from the cache on disk."""
    return cast("F", numba.njit(nogil=True, cache=True)(function))


def short_kernel(function: F) -> F:
    """Compile a function that holds the GIL: letting other threads run pays only for what takes longer than the change of threads."""
    return cast("F", numba.njit(cache=True)(function))


def byte_view(data: bytes | pa.Buffer | None) -> U8:
    """Return bytes as an array, without a copy; nothing where there are none."""
    return np.frombuffer(data, dtype=np.uint8) if data is not None and len(data) else EMPTY_U8


def binary_view(array: pa.Array) -> tuple[U8, I64]:
    """Return the bytes of a binary or string array and its n + 1 offsets into them. Nulls are zero-length. The bytes are not copied."""
    if len(array) == 0:
        return EMPTY_U8, np.zeros(1, dtype=np.int64)
    _, offsets, data = array.buffers()
    view = np.frombuffer(offsets, dtype=np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return byte_view(data), view


def binary_array(data: U8, offsets: I64) -> pa.Array:
    """Return a binary array over bytes and offsets that a kernel filled. The bytes are not copied."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers, null_count=0)
