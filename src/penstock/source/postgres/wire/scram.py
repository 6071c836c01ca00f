"""How a password is proven: SCRAM-SHA-256, and MD5 for servers that still ask for it.

Invariant: the password itself does not leave this module. The server proves in turn that it knows the password's verifier;
``is_verified`` says that it did. Runs wherever an upstream is opened.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from penstock.model.errors import PenstockError

MECHANISM = "SCRAM-SHA-256"
_NONCE_BYTES = 18
_ITERATIONS_MAX = 10_000_000


def md5_response(user: str, password: str, salt: bytes) -> str:
    """Return the answer to an MD5 challenge."""
    inner = hashlib.md5(password.encode() + user.encode(), usedforsecurity=False).hexdigest()
    return "md5" + hashlib.md5(inner.encode() + salt, usedforsecurity=False).hexdigest()


class ScramClient:
    """One SCRAM exchange without channel binding: ``first``, ``final``, then ``verify``."""

    def __init__(self, password: str, nonce: str = "") -> None:
        self._password = password.encode()
        self._nonce = nonce or base64.b64encode(secrets.token_bytes(_NONCE_BYTES)).decode()
        # PostgreSQL takes the user from the startup message and ignores the one here.
        self._first_bare = f"n=,r={self._nonce}"
        self._server_signature = b""
        self.is_verified = False

    def first(self) -> bytes:
        """Return the client's first message."""
        return f"n,,{self._first_bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the proof for the server's challenge."""
        fields = _fields(server_first)
        nonce, salt, rounds = fields.get("r", ""), fields.get("s", ""), fields.get("i", "")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce) or not (rounds.isascii() and rounds.isdigit()):
            raise PenstockError("UPSTREAM_REFUSED", "the server's SCRAM challenge is not an answer to ours")
        if not 0 < int(rounds) <= _ITERATIONS_MAX:
            raise PenstockError("UPSTREAM_REFUSED", f"the server asks for {rounds} rounds of SCRAM")
        salted = hashlib.pbkdf2_hmac("sha256", self._password, base64.b64decode(salt, validate=True), int(rounds))
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._first_bare},{server_first.decode()},{without_proof}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._server_signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), signed, "sha256")
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Raise unless the server proved that it knows the password too."""
        given = _fields(server_final).get("v", "")
        if not self._server_signature or not hmac.compare_digest(base64.b64decode(given, validate=True), self._server_signature):
            raise PenstockError("UPSTREAM_REFUSED", "the server could not prove that it knows the password")
        self.is_verified = True


def _fields(message: bytes) -> dict[str, str]:
    pairs = [part.partition("=") for part in message.decode("utf-8", "replace").split(",")]
    return {name: value for name, _, value in pairs}
