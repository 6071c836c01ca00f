"""Hides credentials in everything that is shown: API answers, command output, logs, error texts.

Invariant: what names itself a secret (a password in a URI, a query parameter or key such as ``secret-access-key`` or ``sas-token``) is
replaced by ``***``; masking twice changes nothing more. A URI is taken apart before it is masked, because passwords are often not
escaped: where it can be read in two ways, more is hidden rather than less. The time is that of the text's length, whatever stands in it:
strangers choose what errors repeat. The meta database keeps the true values; nothing else does. Runs anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_plus

MASK = "***"

_SECRET_WORD = (
    r"secret|passw(?:or)?d|passphrase|pwd|token|credential|signature"
    r"|(?:api|account|access|private|master|customer|encryption|shared|storage|sas)[-_.]?key"
)
"""What makes a name in any text a secret's. Parameters and settings have names of their own, where a bare ``key`` is one too."""
_SECRET_NAME = re.compile(rf"{_SECRET_WORD}|key|sas|^sig$", re.IGNORECASE)
_NOT_SECRET = frozenset({"output-handle-key", "delete-only-output-handle-key-columns", "output-row-key"})
_SHOWN_USERS = frozenset({"mysql", "mariadb", "postgres", "postgresql"})
"""Schemes whose user is a name and no secret."""
_ASSIGNED = re.compile(
    rf"""(?P<name>(?<![\w.-])(?=[\w.-]*?(?:{_SECRET_WORD}|sig=))[\w.-]++["']?\s*+[=:]\s*+(?:Some\()?+)"""
    r"""(?:"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+'|(?P<open>["'][^\n]*+|(?:[^\s&"',;)\]}]|[,;)\]}]++(?!\s|$))++))""",
    re.IGNORECASE,
)
_IDENTIFIED = re.compile(
    r"""\b(identified\s++(?:by|with\s++\S++\s++(?:by|as|using))(?:\s++password)?+\s*+\(?+\s*+)"""
    r"""(?:"(?:[^"\\]|\\.|"")*+"?|'(?:[^'\\]|\\.|'')*+'?)""",
    re.IGNORECASE,
)
"""What a statement that makes users says; it may be cut off."""
_PART_ENDS = (re.compile(r"[/?#:@&=]+"), re.compile(r"[/?#:@&=\s\"']+"))
_PART_CHARS_MIN = 3
_BEARER = re.compile(r"\b(bearer\s+|authorization\s*[:=]\s*(?:basic\s+)?)(?!bearer)[\w.~+/=-]{4,}", re.IGNORECASE)
_SCHEME = re.compile(r"(?<![\w+.-])[+.-]*+(?P<scheme>\w[\w+.-]*+)://")
_HALF_SCHEME = re.compile(r"(?:mysql|mariadb|postgres(?:ql)?|s3a?|gs|az)(?::/?|//?)(?!/)", re.IGNORECASE)
"""A URI in which somebody forgot a slash or the colon."""
_RUN = re.compile(r"[^\s\"']*")
_AUTHORITY = re.compile(r"[^/?#]*")
_HOST_AND_PORT = re.compile(r"[^\s:@/?#]*:\d+(?![^\s/?#,;.)\]])")
_DEPTH_MAX = 4
"""So many URIs within parameters of URIs are looked into; deeper ones are hidden whole."""


def mask_text(text: str) -> str:
    """Return a text with the credentials in its URIs and assignments hidden."""
    return _masked(text, _DEPTH_MAX)


def _masked(text: str, depth: int) -> str:
    shown, at = "", 0
    for found in _SCHEME.finditer(text):
        start = found.end()
        if start > at:
            end = _RUN.match(text, start).end()  # type: ignore[union-attr]
            end = max(end, _end_of_broken_password(text, start, end))
            shown += text[at:start] + _masked_rest(found["scheme"], text[start:end], depth)
            at = end
    shown = _IDENTIFIED.sub(rf"\g<1>{MASK}", _BEARER.sub(rf"\g<1>{MASK}", shown + text[at:]))
    return _ASSIGNED.sub(_hide_value, shown)


def mask_uri(uri: str) -> str:
    """Return a text that is one URI with its credentials hidden, whatever characters they have."""
    found = _SCHEME.match(uri)
    if found is None:
        half = _HALF_SCHEME.match(uri)
        return mask_text(f"{half[0]}{MASK}{uri[uri.rfind('@') :]}" if half and "@" in uri else uri)
    return mask_text(found[0] + _masked_rest(found["scheme"], uri[found.end() :], _DEPTH_MAX))


def mask_parts(text: str, uri: str) -> str:
    """Return a text, of a driver that was given a URI, in which no part of the URI's credentials stands, however it took them apart."""
    credentials = uri.partition("://")[2].rpartition("@")[0].partition(":")[2]
    plain = unquote_plus(credentials)
    parts = {part for given in (credentials, plain) for ends in _PART_ENDS for part in (given, *ends.split(given))}
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= _PART_CHARS_MIN:
            text = text.replace(part, MASK)
    return mask_text(text)


def mask_tree(tree: Any, key: str = "") -> Any:
    """Return a tree of dicts, lists and values with everything secret hidden."""
    if isinstance(tree, Mapping):
        return {name: mask_tree(value, str(name)) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [mask_tree(item, key) for item in tree]
    if tree is not None and _is_secret(key):
        return MASK
    return mask_uri(tree) if isinstance(tree, str) else tree


def _is_secret(name: str) -> bool:
    """Return whether a parameter or setting of this name must not be shown."""
    return name.lower().replace("_", "-") not in _NOT_SECRET and _SECRET_NAME.search(name) is not None


def _hide_value(assigned: re.Match[str]) -> str:
    value = assigned[0][len(assigned["name"]) :]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{assigned['name']}{quote}{MASK}{quote if assigned['open'] is None else ''}"


def _masked_rest(scheme: str, rest: str, depth: int) -> str:
    """Return what stands behind the scheme of a URI with user and secret parameters hidden."""
    nested = rest.find("://")
    host, mark, _ = rest[: max(nested, 0)].partition("?")
    # A URI among the parameters has users of its own.
    at = rest.rfind("@", 0, nested if mark and ":" not in host else len(rest))
    if ":" not in rest[: max(at, 0)]:
        # Without a password an @ behind the host belongs to a path.
        at = rest.rfind("@", 0, _AUTHORITY.match(rest).end())  # type: ignore[union-attr]
    user, _, password = rest[: max(at, 0)].partition(":")
    shown = ""
    if at >= 0:
        names_user = scheme.lower() in _SHOWN_USERS
        shown = f"{user}:{MASK}" if names_user and password else user if names_user else MASK
    place, mark, query = rest[max(at, 0) :].partition("?")
    return shown + place + mark + "&".join(_masked_parameter(pair, depth) for pair in query.split("&"))


def _masked_parameter(pair: str, depth: int) -> str:
    name, equals, value = pair.partition("=")
    if equals and value and (not depth or _is_secret(unquote_plus(name))):
        return f"{name}={MASK}"
    # A URI as a value, such as an endpoint, mostly comes encoded.
    plain = unquote_plus(value)
    for _ in range(_DEPTH_MAX):
        # More than once where it passed through several hands.
        plain = unquote_plus(plain) if "%" in plain else plain
    masked = _masked(plain, max(depth - 1, 0))
    return pair if masked == plain else f"{name}={masked}"


def _end_of_broken_password(text: str, start: int, end: int) -> int:
    """Return where the host begins whose password has a blank or a quote in it, 0 where no password began before the run's end."""
    run = text[start:end]
    if ":" not in run.partition("/")[0] or _HOST_AND_PORT.match(run) or run.rfind("@") not in (-1, len(run) - 1):
        return 0
    stop = max(text.find("://", end), 0) or len(text)
    line_end = text.find("\n", end, stop)
    at = text.rfind("@", end, stop if line_end < 0 else line_end)
    return _RUN.match(text, at).end() if at >= 0 else 0  # type: ignore[union-attr]
