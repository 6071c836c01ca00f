"""One message delivered: posted until it is taken, with pauses, or left as a dead letter where it is refused for good.

No answer, 408, 425, 429 and 5xx are tried again until the time for that is over; then the window is, with the feed's own pauses. What
the address itself refuses (401, 403, 404, 405, 407, 410, a redirect) stops the feed, because no other message would fare better. Every
other 4xx is about the message: after so many refusals it becomes a dead letter where the feed has a place for them, otherwise the feed
stops. Invariant: when ``deliver`` returns, the other side took the message or it is in the dead letters. Runs on executors and in the
server.
"""

from __future__ import annotations

import random
import threading

from penstock.model.backoff import Backoff
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError
from penstock.model.failpoints import reach
from penstock.sink.http.connection import Answer, Connection
from penstock.sink.http.dead_letters import DeadLetters
from penstock.sink.http.messages import Message
from penstock.sink.http.settings import Address, HttpSettings
from penstock.target.storage import Guard

_AGAIN = frozenset({408, 425, 429})
_OF_THE_ADDRESS = frozenset({401, 403, 404, 405, 407, 410})
_BACKOFF = Backoff(0.1, 10.0)
_TOO_LARGE = 413
_TOO_LARGE_HINT = "Let it take larger bodies, or give the feed a dead-letter place. A smaller batch-size counts from the next window on."


class Delivery:
    """Delivers messages over one connection. One thread."""

    def __init__(
        self, address: Address, settings: HttpSettings, clock: Clock, rng: random.Random, guard: Guard | None, letters: DeadLetters | None
    ) -> None:
        self._address = address
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._guard = guard
        self._letters = letters
        self._connection = Connection(address, settings, clock)

    def deliver(self, message: Message, stop: threading.Event) -> None:
        """Post a message until it is settled; raise where it cannot be."""
        until_s = self._clock.monotonic_s() + self._settings.retry_time_ms / 1000
        failures, refusals = 0, 0
        while True:
            if self._guard is not None:
                self._guard()
            pause_s: float | None = None
            try:
                reach("http-post:before")
                answer = self._connection.post(message)
                reach("http-post:after")
                if 200 <= answer.status < 300:
                    return
                error = judged(self._address, answer)
                pause_s = answer.retry_after_s
                if error.code == "SINK_REFUSED":
                    refusals += 1
                    if refusals >= self._settings.refusals_max:
                        self._settle(message, answer, error)
                        return
                elif error.code != "SINK_UNAVAILABLE":
                    raise error
            except PenstockError as failure:
                if failure.code != "SINK_UNAVAILABLE":
                    raise
                error = failure
            failures += 1
            pause_s = max(_BACKOFF.pause_s(failures, self._rng), pause_s or 0.0)
            if self._clock.monotonic_s() + pause_s > until_s or self._clock.wait(stop, pause_s):
                raise error

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _settle(self, message: Message, answer: Answer, error: PenstockError) -> None:
        """Put a message that is refused for good into the dead letters; raise where there is no place for it."""
        if self._letters is None:
            raise error
        self._letters.put(message, answer.status, answer.text)


def judged(address: Address, answer: Answer, what: str = "") -> PenstockError:
    """Return the error that an answer which does not take a message stands for; ``what`` was posted."""
    said = f"{address.shown}: answered {answer.status}{what}" + (f" ({answer.text})" if answer.text else "")
    if answer.status in _AGAIN or answer.status >= 500:
        return PenstockError("SINK_UNAVAILABLE", said)
    if answer.status in _OF_THE_ADDRESS:
        return PenstockError("SINK_UNWRITABLE", said)
    if not 400 <= answer.status < 500:
        return PenstockError("SINK_UNWRITABLE", said, "Redirects are not followed: give the address that takes changes itself.")
    return PenstockError("SINK_REFUSED", said, _TOO_LARGE_HINT if answer.status == _TOO_LARGE else None)
