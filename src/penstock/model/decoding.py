"""Reads values of a type from JSON, from any number of threads.

Owns one decoder for each type. Invariant: decoders are made one at a time, because msgspec looks at a struct when it is decoded first and
ends the process with a segmentation fault where two threads do so at once. Nothing else in the product decodes into a type. Runs anywhere.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")
Text = bytes | bytearray | memoryview | str
_lock = threading.Lock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


@overload
def decoded(data: Text, kind: type[T]) -> T: ...
@overload
def decoded(data: Text, kind: Any) -> Any: ...
def decoded(data: Text, kind: Any) -> Any:
    """Return the value of a type, or of one of several types, that JSON holds; raises what msgspec raises."""
    decoder = _decoders.get(kind)
    if decoder is None:
        with _lock:
            decoder = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    try:
        return decoder.decode(data)
    except RecursionError:
        # Whoever reads what others wrote expects what does not parse, and JSON without a bottom does not.
        raise msgspec.DecodeError("JSON is nested too deep") from None
