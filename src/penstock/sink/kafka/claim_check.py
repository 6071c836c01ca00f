"""Messages that are too large for the brokers go to object storage, and a small one says where.

An object's name is of its content, so that every attempt writes the same one. Objects of an attempt that was given up stay, and no message
names them. Runs on executors.
"""

from __future__ import annotations

from functools import cached_property

import msgspec
import xxhash

from penstock.model.errors import PenstockError
from penstock.target.storage import Guard, ObjectTarget, TargetAddress


class ClaimCheck:
    """Object storage for large messages; opened when the first one comes. One thread at a time opens it."""

    def __init__(self, uri: str, guard: Guard | None) -> None:
        self._uri = uri
        self._guard = guard

    def put(self, topic: str, value: bytes, bytes_max: int) -> bytes:
        """Store a value; return the message that stands for it."""
        if not self._uri:
            text = f"topic {topic}: a message of {len(value)} bytes, where max-message-bytes is {bytes_max}"
            raise PenstockError("SINK_MESSAGE_TOO_LARGE", text)
        digest = xxhash.xxh3_128_hexdigest(value)
        path = f"{topic}/{digest[:2]}/{digest}"
        self._target.put_new(path, value)
        told = {"location": f"{self._target.place}/{path}", "bytes": len(value), "xxh3": digest}
        return msgspec.json.encode({"claimCheck": told})

    @cached_property
    def _target(self) -> ObjectTarget:
        return TargetAddress(self._uri).open(guard=self._guard)
