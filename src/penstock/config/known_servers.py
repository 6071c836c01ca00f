"""Which servers of this user run on this machine, and where their tokens lie: so the command line finds a token by itself.

A server that starts makes its token once, in a file of its data directory that only its user can read, and notes its address in
``~/.penstock/servers`` (``PENSTOCK_HOME`` names another directory). Invariants: the note holds no secret, only the path of the token; it
counts only while the process lives that wrote it, by a lock that the operating system drops with the process, so that a token is never
sent to whoever listens at the address of a server that is gone. Runs in the server, which writes, and in the command line, which reads.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from penstock.files.private_files import is_ours, open_private
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError

log = logging.getLogger(__name__)

TOKEN_FILE = "api-token"
TOKEN_PREFIX = "pst_"
HOME_VARIABLE = "PENSTOCK_HOME"
_STARTING = ".starting"
_EVERYWHERE = frozenset({"0.0.0.0", "::"})


class KnownServer(msgspec.Struct, frozen=True):
    """Where a server answers and which files speak for it."""

    url: str
    token_file: str
    certificate: str | None = None


def new_token() -> str:
    """Return a token that nobody can guess."""
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def write_private(file: Path, content: bytes) -> None:
    """Write a file that only this user can read, whole or not at all."""
    partial = file.with_name(f"{file.name}.{secrets.token_hex(4)}.new")
    with open(partial, "xb", opener=open_private) as sink:
        sink.write(content)
    partial.replace(file)


def ensure_token(data_dir: Path) -> Path:
    """Return the file of a server's own token, made where there is none; refuse one that others know."""
    file = data_dir / TOKEN_FILE
    if not file.exists():
        write_private(file, new_token().encode())
    if not is_ours(file):
        raise PenstockError("CONFIG_INVALID", f"{file}: another user owns it", "Delete it: the server makes a new one.")
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        raise PenstockError(
            "CONFIG_INVALID", f"{file}: others than its owner can read it", f"Delete it: the server makes a new one. Or: chmod 600 {file}"
        )
    return file


def read_token(file: Path) -> str:
    """Return the token in a file."""
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no token"
        raise PenstockError("API_TOKEN_REQUIRED", f"{file}: {reason}") from None


def announce(server: KnownServer) -> Callable[[], None]:
    """Note a server's address until what is returned is called, or the process ends."""
    try:
        return _note(_name(server.url), msgspec.json.encode(server))
    except OSError as error:
        log.warning("the command line will not find the token by itself", extra={"reason": str(error)})
        return lambda: None


def announce_start(url: str) -> Callable[[], None]:
    """Note that a server is about to answer at a URL, until what is returned is called: no token is sent there for that."""
    try:
        return _note(_name(url) + _STARTING, b"{}")
    except OSError:
        return lambda: None


def find_server(url: str) -> KnownServer | None:
    """Return the server of this user that answers at a URL, or None where none is known that lives."""
    try:
        content = _held(_name(url))
    except (OSError, ValueError):
        return None
    with contextlib.suppress(msgspec.DecodeError):
        return decoded(content, KnownServer) if content is not None else None
    return None


def is_starting(url: str) -> bool:
    """Return whether a server of this user is about to answer at a URL."""
    try:
        return _held(_name(url) + _STARTING) is not None
    except (OSError, ValueError):
        return False


def _note(name: str, content: bytes) -> Callable[[], None]:
    """Write a note that counts until what is returned is called, or the process ends."""
    held = -1
    try:
        place = _directory()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_private(place):
            raise PermissionError(0, f"{place} belongs to another user, or others can write there")
        file = place / name
        partial = place / f"{file.name}.{secrets.token_hex(4)}.new"
        held = open_private(str(partial), os.O_RDWR | os.O_CREAT | os.O_EXCL)
        # Locked before it has its name: whoever finds it by that name finds it held.
        fcntl.flock(held, fcntl.LOCK_EX)
        os.write(held, content)
        partial.replace(file)
    except OSError:
        if held >= 0:
            os.close(held)
        raise

    def withdraw() -> None:
        with contextlib.suppress(OSError):
            if file.stat().st_ino == os.fstat(held).st_ino:
                file.unlink()
        os.close(held)

    return withdraw


def _held(name: str) -> bytes | None:
    """Return a note whose writer lives, or None; raises ``OSError`` where there is no such note."""
    place = _directory()
    if not _is_private(place):
        return None
    with os.fdopen(os.open(place / name, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            # Held: its server lives.
            return file.read()
        return None


def _directory() -> Path:
    return home_directory() / "servers"


def home_directory() -> Path:
    """Return where files of this user are; raises ``OSError`` where it has no home, as one that a container gave only a number."""
    named = os.environ.get(HOME_VARIABLE)
    if named:
        return Path(named)
    try:
        return Path("~/.penstock").expanduser()
    except RuntimeError:
        raise FileNotFoundError(0, f"this user has no home directory: set {HOME_VARIABLE}") from None


def _is_private(place: Path) -> bool:
    found = place.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _name(url: str) -> str:
    """Return the note's name: host and port, a server that listens everywhere under the address that this machine calls."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    if host in _EVERYWHERE or host == "localhost":
        host = "127.0.0.1"
    return f"{host.replace(':', '_')}-{parts.port or (443 if parts.scheme == 'https' else 80)}.json"
