"""Which files a row passes: traces one change by a text in it, through every thread that runs Python.

A file is passed where one of its functions has the row in hand: in an argument, a local or what it returns, as bytes, text, Arrow or in a
batch. What an object keeps to itself, what a function holds for a moment within a loop, and compiled kernels are not seen, so a walk has
at least the files that are found, and at most those that ran. Runs in tests.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

import penstock

_PACKAGE = str(Path(penstock.__file__).parent) + "/"
_DEPTH = 3
"""A step, its changes, one of them: deeper lies what only refers to rows, such as a view of a store."""
_BYTES_MAX = 1 << 24
_ITEMS_MAX = 1000


class ChangeWalk:
    """Notes files while it is switched on."""

    def __init__(self, mark: str) -> None:
        """``mark`` is a text that the row has and nothing else."""
        self._mark = mark
        self._bytes = mark.encode()
        self._on = False
        self.passed: set[str] = set()
        """Files below the package that had the row in hand."""
        self.ran: set[str] = set()

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Trace every thread that is started meanwhile."""
        threading.setprofile(self._see)
        try:
            yield
        finally:
            threading.setprofile(None)

    @contextmanager
    def switched_on(self) -> Iterator[None]:
        """Note what runs, in this thread too."""
        self._on = True
        self.attach()
        try:
            yield
        finally:
            sys.setprofile(None)
            self._on = False

    def attach(self) -> None:
        """Trace the calling thread, which Python did not start."""
        sys.setprofile(self._see)

    def _see(self, frame: FrameType, event: str, value: Any) -> None:
        if not self._on or event not in {"call", "return"} or not frame.f_code.co_filename.startswith(_PACKAGE):
            return
        name = frame.f_code.co_filename.removeprefix(_PACKAGE)
        self.ran.add(name)
        if name not in self.passed and self._any([value, *(v for n, v in frame.f_locals.items() if n != "self")], _DEPTH):
            self.passed.add(name)

    def _any(self, values: Iterable[Any], depth: int) -> bool:
        return any(self._holds(value, depth) for value in values)

    def _holds(self, value: Any, depth: int) -> bool:
        if isinstance(value, str):
            return self._mark in value
        raw = _raw(value)
        return self._bytes in raw if raw is not None else depth > 0 and self._any(_parts(value), depth - 1)


def _raw(value: Any) -> bytes | None:
    """Return the bytes of what is nothing but bytes, none of very many."""
    try:
        if isinstance(value, bytes | bytearray | memoryview | pa.Buffer):
            return bytes(value) if memoryview(value).nbytes < _BYTES_MAX else b""
    except ValueError:  # A view that was released.
        return b""
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.dtype == np.uint8 and value.nbytes < _BYTES_MAX else b""
    if isinstance(value, pa.Array):
        return b"".join(_raw(buffer) or b"" for buffer in value.buffers() if buffer is not None)
    return b"".join(_raw(column) or b"" for column in value.columns) if isinstance(value, pa.RecordBatch) else None


def _parts(value: Any) -> tuple[Any, ...]:
    """Return what a plain value consists of."""
    if isinstance(value, list | tuple | set | frozenset):
        return tuple(value) if len(value) < _ITEMS_MAX else ()
    if isinstance(value, msgspec.Struct):
        return tuple(getattr(value, name, None) for name in value.__struct_fields__)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(getattr(value, field.name, None) for field in dataclasses.fields(value))
    return ()
