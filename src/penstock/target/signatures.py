"""Signatures of posted bodies, as the Standard Webhooks specification has them, so that its libraries check them. Runs anywhere.

What is signed is the message's id, the second at which it is sent and the body; the receiver refuses what is old, or not signed so.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping

ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER = "webhook-id", "webhook-timestamp", "webhook-signature"
TOLERANCE_S = 300
SECRET_PREFIX = "whsec_"


def secret_key(secret: str) -> bytes:
    """Return the key that a secret stands for: what follows the prefix is base64, any other text stands for itself."""
    if secret.startswith(SECRET_PREFIX):
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    return secret.encode()


def signature(secret: bytes, message_id: str, timestamp_s: int, body: bytes) -> str:
    """Return what stands in the signature's header."""
    signed = hmac.digest(secret, f"{message_id}.{timestamp_s}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(signed).decode()}"


def is_signed(secret: bytes, headers: Mapping[str, str], body: bytes, now_s: int) -> bool:
    """Return whether a body was signed with this secret, and not long ago. The names of headers are in lower case."""
    timestamp = headers.get(TIMESTAMP_HEADER, "")
    if not timestamp.isdecimal() or abs(now_s - int(timestamp)) > TOLERANCE_S:
        return False
    wanted = signature(secret, headers.get(ID_HEADER, ""), int(timestamp), body)
    return any(hmac.compare_digest(wanted.encode(), given.encode()) for given in headers.get(SIGNATURE_HEADER, "").split())
