"""Seals what the meta database keeps of feeds: their configurations hold credentials of sources and targets.

The key comes from ``PENSTOCK_META_KEY`` (32 bytes in base64; several, divided by commas, where a key is being replaced: the first
seals, all of them open), or from a file beside an embedded database, made at the first use for its owner alone. A database server is
shared by machines, so only the variable gives its key; without it texts stay as they are. Invariants: a sealed text opens only whole and
unchanged (AES and HMAC of the ``cryptography`` package); a text from before sealing passes as it is. Runs in the server.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import logging
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.access.secret_variables import META_KEY_VARIABLE
from penstock.files.private_files import is_ours, open_private
from penstock.meta.engine import sqlite_file
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet

_SEALED = "sealed:1:"
_KEY_BYTES = 32

log = logging.getLogger(__name__)


class Seal:
    """Seals and opens texts of one meta database. Safe for many threads."""

    def __init__(self, url: str, environment: Mapping[str, str]) -> None:
        self._given = [key.strip() for key in environment.get(META_KEY_VARIABLE, "").split(",") if key.strip()]
        self._file = _key_file(url)
        self._fernet: MultiFernet | None = None

    def close(self, text: str) -> str:
        """Return a text as it is stored."""
        if not self._given and self._file is None:
            log.warning("the meta database keeps credentials of feeds as they are", extra={"do": f"set {META_KEY_VARIABLE}"})
            return text
        if self._file is not None and not self._given:
            _make(self._file)
        return _SEALED + self._keys().encrypt(text.encode()).decode()

    def open(self, stored: str) -> str:
        """Return what was stored; raise ``META_SEALED`` where no key opens it."""
        if not stored.startswith(_SEALED):
            return stored
        from cryptography.fernet import InvalidToken

        try:
            return self._keys().decrypt(stored.removeprefix(_SEALED).encode()).decode()
        except InvalidToken:
            raise PenstockError("META_SEALED", f"no key of {self._places()} opens the configuration of a feed") from None

    def _keys(self) -> MultiFernet:
        if self._fernet is None:
            from cryptography.fernet import Fernet, MultiFernet

            found = [*self._given]
            with contextlib.suppress(FileNotFoundError):
                found += [_read(self._file)] if self._file is not None else []
            if not found:
                raise PenstockError("META_SEALED", f"there is no key in {self._places()}")
            self._fernet = MultiFernet([Fernet(_checked(key)) for key in found])
        return self._fernet

    def _places(self) -> str:
        return META_KEY_VARIABLE + (f" or {self._file}" if self._file is not None else "")


def _key_file(url: str) -> Path | None:
    file = sqlite_file(url)
    return None if file is None else file.with_suffix(".key")


def _checked(key: str) -> bytes:
    try:
        raw = base64.b64decode(key.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != _KEY_BYTES:
        raise PenstockError(
            "CONFIG_INVALID", f"{META_KEY_VARIABLE}: a key has {_KEY_BYTES} bytes in base64", "Make one: openssl rand -base64 32"
        )
    return base64.urlsafe_b64encode(raw)


def _read(file: Path) -> str:
    """Return the key of a file; one that others made or can read is none."""
    if not is_ours(file) or file.stat().st_mode & 0o077:
        raise PenstockError("CONFIG_INVALID", f"{file}: others than this user know the key", f"If nobody has read it: chmod 600 {file}")
    return file.read_text(encoding="ascii").strip()


def _make(file: Path) -> None:
    """Make a key unless there is one; whoever comes second finds the first one's, whole."""
    if file.exists():
        return
    from cryptography.fernet import Fernet

    # Of its own: two threads of a server may create their feeds at once, and one must not write over what the other has linked.
    partial = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
    with open(partial, "xb", opener=open_private) as sink:
        sink.write(Fernet.generate_key() + b"\n")
        sink.flush()
        os.fsync(sink.fileno())
    with contextlib.suppress(FileExistsError):
        os.link(partial, file)
    partial.unlink()
