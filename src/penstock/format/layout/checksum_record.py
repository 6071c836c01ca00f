"""Checksum records: what the data files of a window held when they were written, a fact that the layout itself has no place for.

One object for each window that wrote files, beside the owner's mark: a first line with magic, version and the checksum of the rest, then
one line for each file. Readers that do not know of it lose nothing. Invariants: a record that was damaged is told from a file that was;
the same files give the same record. Runs beside the driver and wherever a target is checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec
import xxhash

from penstock.format.layout.paths import OWNER_DIR
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError

CHECKSUMS_DIR = f"{OWNER_DIR}/checksums"
checksum_of: Callable[[bytes | memoryview], str] = xxhash.xxh3_128_hexdigest
"""Returns the checksum of a file's bytes; it is stored, so it never changes."""
_PATH = re.compile(rf"{re.escape(CHECKSUMS_DIR)}/(\d{{20}})\Z")
_MAGIC = b"penstock-checksums 1 "


class FileChecksum(msgspec.Struct, frozen=True, order=True, array_like=True):
    """What a file held: how many bytes, and their checksum."""

    path: str
    nbytes: int
    checksum: str


def record_path(window_end_ts: int) -> str:
    """Return where the record of a window lies."""
    return f"{CHECKSUMS_DIR}/{window_end_ts:020d}"


def parse_record_path(path: str) -> int | None:
    """Return the end of the window whose record this is; None where it is none."""
    found = _PATH.match(path)
    return None if found is None else int(found[1])


def render_record(files: Iterable[FileChecksum]) -> bytes:
    """Return the content of a record."""
    body = b"".join(msgspec.json.encode(file) + b"\n" for file in sorted(files))
    return _MAGIC + checksum_of(body).encode() + b"\n" + body


def parse_record(content: bytes, path: str) -> list[FileChecksum]:
    """Read what ``render_record`` wrote."""
    head, _, body = content.partition(b"\n")
    if not head.startswith(_MAGIC) or head.removeprefix(_MAGIC).decode("latin-1") != checksum_of(body):
        raise PenstockError("FILE_MALFORMED", f"{path}: line 1: it is no record of checksums, or a damaged one")
    try:
        return [decoded(line, FileChecksum) for line in body.splitlines()]
    except msgspec.MsgspecError as error:
        raise PenstockError("FILE_MALFORMED", f"{path}: {error}") from error
