"""What object storage must allow for a feed to deliver there, checked one by one: the doctor's part about targets.

Writes one object of its own, by a name that no feed uses, and deletes it; a folder that was not there is not there afterwards. Runs
wherever someone asks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.format.layout.paths import OWNER_DIR
from penstock.model.clock import system_random
from penstock.model.errors import PenstockError
from penstock.model.finding import Finding, Level
from penstock.settings.masking import mask_text
from penstock.target.owner_mark import OwnerMark
from penstock.target.settings import from_uri
from penstock.target.storage import ObjectTarget, TargetAddress, unfenced

_CREDENTIALS = "permission to list, read, create and delete objects below the prefix"


def check_storage(uri: str, options: Mapping[str, Any], feed: str | None) -> list[Finding]:
    """Return what was found; ``feed`` is the name of the feed that is meant to deliver there."""
    target_uri, _ = from_uri(uri, options)
    with _folders_as_they_were(target_uri):
        try:
            target = TargetAddress(target_uri).open(guard=unfenced)
            used = not target.is_empty()
        except PenstockError as error:
            return [Finding("target: reachable", False, mask_text(f"[{error.code}] {error.detail}"), error.hint)]
        findings = [Finding("target: reachable", True, target.name, "it answers and can be listed")]
        findings.append(_owner(target, used, feed))
        findings += _writes(target)
        return findings


@contextlib.contextmanager
def _folders_as_they_were(uri: str) -> Iterator[None]:
    """Remove the folders that opening a target makes, where they are still empty."""
    parts = urlsplit(uri)
    folder = Path(unquote(parts.path)) if parts.scheme == "file" else None
    missing = [] if folder is None else [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        yield
    finally:
        for one in missing:
            with contextlib.suppress(OSError):
                one.rmdir()


def _owner(target: ObjectTarget, used: bool, feed: str | None) -> Finding:
    name, wanted = "target: free", "empty, or the feed's own"
    owner = OwnerMark(target).find()
    if owner is None and not used:
        return Finding(name, True, "empty", wanted)
    if owner is None:
        return Finding(name, False, "not empty, and of no feed", f"{wanted}: choose an empty prefix")
    of = owner.feed.partition("/")[0]
    if feed is not None and of == feed:
        found = f"belongs to a feed {of}, whose server goes on with it; a feed that is created again under this name needs an empty prefix"
        return Finding(name, False, found, wanted, level=Level.NOTE)
    return Finding(name, False, f"belongs to feed {of}", f"{wanted}: choose an empty prefix, or remove that feed and its files")


def _writes(target: ObjectTarget) -> Iterator[Finding]:
    """Create an object, try to create it once more with other content, find it in a list, and delete it."""
    probe = f"{OWNER_DIR}/probe-{system_random().getrandbits(128):032x}"
    step = "create"
    try:
        target.put_new(probe, b"penstock\n")
        yield Finding("target: create", True, "an object was created", _CREDENTIALS)
        yield _create_only(target, probe)
        step = "list"
        listed = probe in target.paths(OWNER_DIR)
        yield Finding("target: list", listed, "the object is listed" if listed else "a new object is not listed", "lists show new objects")
        step = "delete"
        target.delete(probe)
        gone = target.find(probe) is None
        yield Finding("target: delete", gone, "the object was deleted" if gone else "a deleted object is still there", _CREDENTIALS)
    except PenstockError as error:
        yield Finding(f"target: {step}", False, mask_text(f"[{error.code}] {error.detail}"), _CREDENTIALS)
        with contextlib.suppress(PenstockError):
            target.delete(probe)


def _create_only(target: ObjectTarget, probe: str) -> Finding:
    name, wanted = "target: create-only", "what exists is refused, so that of two writers one fails"
    try:
        target.put_new(probe, b"another\n")
    except PenstockError as error:
        if error.code != "SINK_CONFLICT":
            raise
        return Finding(name, True, "an object that exists is not overwritten", wanted)
    return Finding(name, False, "an object that exists was overwritten", wanted)
