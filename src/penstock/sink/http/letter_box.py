"""The dead letters of an HTTP target as an operator meets them: listed, shown, posted once more. Runs in the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import PenstockError
from penstock.sink.http.connection import Connection
from penstock.sink.http.dead_letters import DeadLetters
from penstock.sink.http.delivery import judged
from penstock.sink.http.settings import Address, HttpSettings


class HttpLetterBox:
    """Implements ``penstock.sink.kind.LetterBox``. Not thread safe."""

    def __init__(self, address: Address, settings: HttpSettings, feed: str, clock: Clock | None = None) -> None:
        if not settings.dead_letter:
            raise PenstockError("DEAD_LETTER_UNKNOWN", f"feed {feed} has no dead-letter place")
        self._address = address
        self._settings = settings
        self._clock = clock or SystemClock()
        self._letters = DeadLetters.at(settings.dead_letter, feed, None)

    def names(self) -> Sequence[str]:
        """Return the names of all, in the order of their sequences."""
        return self._letters.names()

    def show(self, name: str) -> dict[str, Any]:
        """Return one."""
        return {"name": name, **msgspec.to_builtins(self._letters.find(name))}

    def retry(self, name: str) -> None:
        """Post one once more, as what it was; it is removed when it is taken. Those of one lane go in their order, as their keys do."""
        letter = self._letters.find(name)
        lane = name.partition("_")[2]
        first = next(other for other in self.names() if other.partition("_")[2] == lane)
        if first != name:
            raise PenstockError("DEAD_LETTER_ORDER", f"dead letter {first} of the same lane is older than {name}")
        connection = Connection(self._address, self._settings, self._clock)
        try:
            answer = connection.post(letter.message, redelivery=True)
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            raise judged(self._address, answer, f" to dead letter {name}")
        self._letters.remove(name)
