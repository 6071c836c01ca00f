"""Dead letters: messages that the other side refused for good, kept on object storage until somebody looks at them.

A letter lies at ``<place>/<feed>/dead-letters/<sequence>_<lane>.json``, the same for every attempt of its rows. Invariants: a letter has
the whole message, so that it can be posted again as it was; it has neither headers with secrets nor the address; at most so many are
written by one task, because an address that refuses everything is no reason to leave a whole table aside. Runs on executors and in the
server.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from penstock.model.clock import system_random
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError
from penstock.model.failpoints import reach
from penstock.sink.http.messages import Message
from penstock.target.settings import from_uri
from penstock.target.storage import Guard, ObjectTarget, TargetAddress

_FOLDER, _ENDING = "dead-letters", ".json"


class Letter(msgspec.Struct, frozen=True):
    """A message that was refused, and what was said of it."""

    status: int
    reason: str
    id: str
    lane: str
    sequence: str
    content_type: str
    headers: dict[str, str]
    rows: int
    body: str

    @classmethod
    def of(cls, message: Message, status: int, reason: str) -> Letter:
        """Return the letter of a message."""
        place = (message.id, message.lane, message.sequence, message.content_type, message.headers)
        return cls(status, reason, *place, message.rows, message.body.decode())

    @property
    def message(self) -> Message:
        """Return the message as it was."""
        return Message(self.id, self.lane, self.sequence, self.content_type, self.body.encode(), self.headers, self.rows)


class DeadLetters:
    """The dead letters of one feed. Thread safe."""

    def __init__(self, target: ObjectTarget, feed: str, letters_max: int = 0) -> None:
        """``letters_max``: so many may be put by this object; 0 for those who only read."""
        self._target = target
        self._folder = f"{quote(feed, safe='')}/{_FOLDER}"
        self._letters_max = letters_max
        self._count = 0
        self._lock = threading.Lock()

    @classmethod
    def at(cls, uri: str, feed: str, guard: Guard | None, letters_max: int = 0) -> DeadLetters:
        """Open the dead letters of a feed."""
        return cls(TargetAddress(from_uri(uri)[0]).open(guard=guard), feed, letters_max)

    @property
    def count(self) -> int:
        """Return how many were put."""
        return self._count

    def put(self, message: Message, status: int, reason: str) -> None:
        """Keep a message; raise ``SINK_REFUSED`` where there are too many already."""
        with self._lock:
            self._count += 1
            if self._count > self._letters_max:
                raise PenstockError(
                    "SINK_REFUSED", f"more than {self._letters_max} messages were refused, the last with {status} ({reason})"
                )
        reach("dead-letter:before")
        self._target.put(self._path(_name(message)), msgspec.json.encode(Letter.of(message, status, reason)))
        reach("dead-letter:after")

    def probe(self) -> None:
        """Raise unless the place takes an object and lets go of it."""
        path = f"{self._folder}/probe-{system_random().getrandbits(128):032x}"
        self._target.put_new(path, b"penstock\n")
        self._target.delete(path)

    def names(self) -> Sequence[str]:
        """Return the names of all letters, in the order of their sequences."""
        found = (path.rpartition("/")[2] for path in self._target.paths(self._folder))
        return sorted(name.removesuffix(_ENDING) for name in found if name.endswith(_ENDING))

    def find(self, name: str) -> Letter:
        """Return a letter; raise ``DEAD_LETTER_UNKNOWN`` where there is none of this name."""
        try:
            if "/" in name or not name:
                raise FileNotFoundError(name)
            return decoded(self._target.get(self._path(name)), Letter)
        except FileNotFoundError:
            raise PenstockError("DEAD_LETTER_UNKNOWN", f"no dead letter {name!r}") from None
        except msgspec.MsgspecError as error:
            raise PenstockError("FILE_MALFORMED", f"{self._path(name)}: {error}") from error

    def remove(self, name: str) -> None:
        """Forget a letter."""
        self._target.delete(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}{_ENDING}"


def _name(message: Message) -> str:
    return f"{message.sequence}_{message.lane.replace('/', '_')}"
