"""Hides credentials in everything that is shown: API answers, command output, logs, error texts.

Invariant: what names itself a secret (a password in a URI, a query parameter or key such as ``secret-access-key`` or ``sas-token``) is
replaced by ``***``; masking twice changes nothing more. The meta database keeps the true values; nothing else does. Runs anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"

_SECRET_WORD = r"secret|passw(?:or)?d|passphrase|pwd|token|credential|signature|(?:api|account|access|private)[-_.]?key"
_SECRET_NAME = rf"[\w.-]*(?:{_SECRET_WORD})[\w.-]*"
_SECRET_KEY = re.compile(_SECRET_NAME, re.IGNORECASE)
_ASSIGNED = re.compile(rf"""(?P<name>\b{_SECRET_NAME})(?P<mid>["']?\s*[=:]\s*["']?)(?P<value>[^\s&"',;#)\]}}]+)""", re.IGNORECASE)
_SIGNED = re.compile(r"(?P<name>[?&]sig=)[^\s&\"'#]+", re.IGNORECASE)
# Up to the last @ before the path ends, because a password may hold an @ of its own that nobody escaped.
_USER_INFO = re.compile(r"(?P<scheme>\b[a-zA-Z][\w+.-]*://)(?P<user>[^\s/?#:@\"']*):(?P<password>[^\s/?#\"']*)@")


def mask_text(text: str) -> str:
    """Return a text with the credentials in its URIs and assignments hidden."""
    text = _USER_INFO.sub(rf"\g<scheme>\g<user>:{MASK}@", text)
    text = _SIGNED.sub(rf"\g<name>{MASK}", text)
    return _ASSIGNED.sub(rf"\g<name>\g<mid>{MASK}", text)


def mask_uri(uri: str) -> str:
    """Return a URI with its credentials hidden."""
    return mask_text(uri)


def mask_tree(tree: Any, key: str = "") -> Any:
    """Return a tree of dicts, lists and values with everything secret hidden."""
    if isinstance(tree, Mapping):
        return {name: mask_tree(value, str(name)) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [mask_tree(item, key) for item in tree]
    if tree is not None and _SECRET_KEY.fullmatch(key):
        return MASK
    return mask_text(tree) if isinstance(tree, str) else tree
