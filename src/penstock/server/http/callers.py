"""Who calls: tokens as they come in, and whose they are.

The server's own token opens everything and needs no database; all others are kept in the meta database and remembered here for a moment,
so that a call costs one look into memory. Invariants: a token that this server revoked opens nothing from then on; one that another server
revoked opens nothing after ``_FRESH_S``; an expiry counts to the millisecond. Runs in the server.
"""

from __future__ import annotations

import hmac
import threading

import msgspec

from penstock.config.known_servers import new_token
from penstock.meta.api_tokens import ApiToken, ApiTokens, Role, digest_of
from penstock.model.clock import Clock

_FRESH_S = 2.0
OWN_NAME = "server"


class Caller(msgspec.Struct, frozen=True):
    """Whom a token belongs to. ``key`` tells callers apart and is no secret."""

    key: str
    name: str
    role: Role


class Callers:
    """The tokens that open one server. Thread safe."""

    def __init__(self, own_token: str, tokens: ApiTokens, clock: Clock) -> None:
        self._own_digest = digest_of(own_token)
        self._own = Caller(OWN_NAME, OWN_NAME, Role.ADMIN)
        self._tokens = tokens
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, ApiToken] = {}
        self._read_s = float("-inf")

    def find(self, token: str) -> tuple[Caller | None, bool]:
        """Return whose token it is, as far as memory tells, and whether that is certain; where not, ``refresh`` and ask again."""
        digest = digest_of(token)
        if hmac.compare_digest(digest, self._own_digest):
            return self._own, True
        fresh = self._clock.monotonic_s() - self._read_s < _FRESH_S
        found = self._known.get(digest)
        valid = found is not None and found.is_valid(self._clock.now_ms())
        return (Caller(found.id, found.name, found.role) if found is not None and valid else None), fresh

    def refresh(self) -> None:
        """Read the tokens again, unless another call just has."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if now_s - self._read_s >= _FRESH_S:
                self._read(now_s)

    def create(self, name: str, role: Role, valid_ms: int) -> tuple[ApiToken, str]:
        """Make a token that is valid for so long, with 0 until it is revoked."""
        made = self._tokens.create(name, role, valid_ms, new_token)
        self._read_now()
        return made

    def revoke(self, token_id: str) -> ApiToken:
        """End a token; it opens nothing any more when this returns."""
        ended = self._tokens.revoke(token_id)
        self._read_now()
        return ended

    def list(self) -> list[ApiToken]:
        """Return every token that is kept."""
        return self._tokens.list()

    def _read_now(self) -> None:
        with self._lock:
            self._read(self._clock.monotonic_s())

    def _read(self, now_s: float) -> None:
        self._known = {token.digest: token for token in self._tokens.list()}
        self._read_s = now_s
