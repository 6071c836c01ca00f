"""The part of the HTTP API about its own tokens: made, listed, revoked; for admins alone. Runs in the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Body, FastAPI

from penstock.meta.api_tokens import NAME_CHARS_MAX, ApiToken, Role
from penstock.model.clock import Clock
from penstock.server.http.bodies import checked_tree
from penstock.server.http.callers import Callers
from penstock.server.http.guard import TOKENS_PATH
from penstock.settings.loader import load

_EXPIRES_S_MAX = 100 * 366 * 86_400.0


@dataclass(frozen=True)
class TokenRequest:
    """A token that somebody wants: for whom, for what, for how long; 0: until it is revoked."""

    name: str
    role: Role = Role.READ
    expires_s: float = 0.0

    def problems(self) -> list[tuple[str, str]]:
        """Return every invalid field with what is wrong."""
        found = []
        if not 1 <= len(self.name) <= NAME_CHARS_MAX or not self.name.isprintable():
            found.append(("name", f"must have 1 to {NAME_CHARS_MAX} printable characters"))
        if not 0 <= self.expires_s <= _EXPIRES_S_MAX:
            found.append(("expires", "must be at most 100 years"))
        return found


def add_token_routes(app: FastAPI, callers: Callers, clock: Clock) -> None:
    """Add the routes."""

    @app.post(TOKENS_PATH, status_code=201)
    def create_token(tree: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        wanted = load(TokenRequest, checked_tree(tree))
        made, token = callers.create(wanted.name, wanted.role, round(wanted.expires_s * 1000) if wanted.expires_s else 0)
        # The only time that it is shown: from here on a digest is all there is.
        return _view(made, clock) | {"token": token}

    @app.get(TOKENS_PATH)
    def list_tokens() -> dict[str, Any]:
        return {"tokens": [_view(token, clock) for token in callers.list()]}

    @app.delete(TOKENS_PATH + "/{token_id}")
    def revoke_token(token_id: str) -> dict[str, Any]:
        return _view(callers.revoke(token_id), clock)


def _view(token: ApiToken, clock: Clock) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "role": token.role.value,
        "created_ms": token.created_ms,
        "expires_ms": token.expires_ms or None,
        "revoked_ms": token.revoked_ms or None,
        "valid": token.is_valid(clock.now_ms()),
    }
