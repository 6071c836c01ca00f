"""The tokens that callers of the API have, beside a server's own: who made for whom, what they allow, until when.

Invariants: the database holds a digest of a token and never the token, which is told once, when it is made; a token has 256 random bits,
so a plain digest tells nothing; what was revoked or has expired is never valid again. All servers on one database know the same tokens.
Runs in the server.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec
import sqlalchemy as sa

from penstock.meta.engine import MetaEngine, MetaSettings
from penstock.meta.tables import api_token
from penstock.model.clock import Clock, SystemClock
from penstock.model.errors import PenstockError

TOKENS_MAX = 1_000
NAME_CHARS_MAX = 100
_ID = re.compile("[0-9a-f]{8}")
_KEPT_MS = 90 * 86_400_000


class Role(StrEnum):
    """What a token allows; each holds what stands before it."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def allows(self, needed: Role) -> bool:
        """Return whether whoever has this role may do what needs another."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


class ApiToken(msgspec.Struct, frozen=True):
    """What is known of a token; an expiry of 0: never."""

    id: str
    name: str
    role: Role
    digest: str
    created_ms: int
    expires_ms: int
    revoked_ms: int

    def is_valid(self, now_ms: int) -> bool:
        """Return whether the token opens anything now."""
        return not self.revoked_ms and (not self.expires_ms or now_ms < self.expires_ms)


def digest_of(token: str) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class ApiTokens:
    """The tokens in one meta database. Thread safe."""

    def __init__(self, url: str, clock: Clock | None = None, meta: MetaSettings | None = None) -> None:
        self._clock = clock or SystemClock()
        self._engine = MetaEngine(url, meta or MetaSettings())

    def close(self) -> None:
        """Close the connections."""
        self._engine.close()

    def create(self, name: str, role: Role, valid_ms: int, make: Callable[[], str]) -> tuple[ApiToken, str]:
        """Keep a new token; return what is known of it, and the token itself. It is valid for so long, with 0 until it is revoked."""
        token, now_ms = make(), self._clock.now_ms()
        made = ApiToken(secrets.token_hex(4), name, role, digest_of(token), now_ms, now_ms + valid_ms if valid_ms else 0, 0)
        ended = (api_token.c.revoked_ms > 0) & (api_token.c.revoked_ms < now_ms - _KEPT_MS)
        expired = (api_token.c.expires_ms > 0) & (api_token.c.expires_ms < now_ms - _KEPT_MS)
        with self._engine.write() as connection:
            connection.execute(api_token.delete().where(ended | expired))
            if connection.execute(sa.select(sa.func.count()).select_from(api_token)).scalar_one() >= TOKENS_MAX:
                raise PenstockError("CONFIG_INVALID", f"there are {TOKENS_MAX} tokens", "Revoke those that nobody uses.")
            connection.execute(api_token.insert().values(msgspec.to_builtins(made)))
        return made, token

    def list(self) -> list[ApiToken]:
        """Return every token that is kept, the oldest first."""
        with self._engine.read() as connection:
            rows = connection.execute(sa.select(api_token).order_by(api_token.c.created_ms, api_token.c.id)).all()
        return [_token(row) for row in rows]

    def revoke(self, token_id: str) -> ApiToken:
        """End a token for good; raise ``TOKEN_UNKNOWN``. One that is revoked stays as it is."""
        if not _ID.fullmatch(token_id):
            raise PenstockError("TOKEN_UNKNOWN", f"there is no token {token_id}")
        with self._engine.write() as connection:
            row = connection.execute(sa.select(api_token).where(api_token.c.id == token_id)).first()
            if row is None:
                raise PenstockError("TOKEN_UNKNOWN", f"there is no token {token_id}")
            found = _token(row)
            if found.revoked_ms:
                return found
            now_ms = self._clock.now_ms()
            connection.execute(api_token.update().where(api_token.c.id == token_id).values(revoked_ms=now_ms))
            return msgspec.structs.replace(found, revoked_ms=now_ms)


def _token(row: sa.Row[Any]) -> ApiToken:
    return ApiToken(row.id, row.name, Role(row.role), row.digest, row.created_ms, row.expires_ms, row.revoked_ms)
