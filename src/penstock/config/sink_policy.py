"""What a caller of the API may make the server write to.

A caller gives a target and the parameters of a list, for each kind of target; whatever names a file of the server's machine, an address
that its credentials go to, or a program (token files, service accounts, metadata and authority hosts, proxies, the spool's directory)
stands in the server's own configuration alone, in a named connection. ``sink-allow`` limits the targets themselves; then what decides
where a bucket is (endpoint, account) comes from connections alone as well. Invariants: a parameter that is not on the list is refused, so
one that a new release of the client brings is too; no target lies in the server's own data directory. Runs in the server.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.config.tree import SinkConfig
from penstock.model.errors import PenstockError
from penstock.settings.loader import Problems
from penstock.sink.catalog import kind_of
from penstock.target.hosts import is_host

_KINDS = {"s3a": "s3", "gcs": "gs", "azure": "az", "azblob": "az"}
_PREFIXES = {"s3": ("aws-",), "gs": ("google-",), "az": ("azure-storage-", "azure-")}
_OF_S3 = """
access-key access-key-id secret-access-key session-token token region default-region endpoint endpoint-url force-path-style path-style
virtual-hosted-style-request checksum-algorithm disable-tagging disable-bulk-delete request-payer server-side-encryption sse-kms-key-id
sse-bucket-key-enabled sse-customer-key-base64 skip-signature unsigned-payload
"""
_OF_AZURE = """
account-name account-key access-key master-key bearer-token token sas-key sas-token client-id client-secret tenant-id endpoint use-emulator
skip-signature disable-tagging encryption-key
"""
_ALLOWED = {
    "s3": frozenset(_OF_S3.split()),
    # Its client sends the machine's own token with what it writes, unsigned or not: no caller chooses where that goes.
    "gs": frozenset({"bearer-token", "skip-signature"}),
    "az": frozenset(_OF_AZURE.split()),
}
"""What a caller may say to a target's client, by kind; to others nothing."""
_ADDRESSES = frozenset({"endpoint", "endpoint-url"})
_PLACES = _ADDRESSES | {"account-name", "use-emulator"}
_NAME_VALUES = {
    "region": re.compile(r"[A-Za-z0-9-]{1,64}"),
    "default-region": re.compile(r"[A-Za-z0-9-]{1,64}"),
    "account-name": re.compile(r"[A-Za-z0-9-]{1,64}"),
    "tenant-id": re.compile(r"[A-Za-z0-9.-]{1,128}"),
}
"""Values that become part of a host's name or a path there."""
_BUCKET = re.compile(r"[A-Za-z0-9$][A-Za-z0-9._-]{0,254}")


class SinkPolicy:
    """Says which targets callers may use; whoever configured the server may use all."""

    def __init__(
        self,
        allow: Sequence[str] = (),
        data_dir: Path | None = None,
        resolve: Callable[[SinkConfig], SinkConfig] = lambda sink: sink,
    ) -> None:
        """``resolve`` gives what a named connection stands for."""
        self._allow = tuple(_canonical_pattern(pattern) for pattern in allow)
        self._data_dir = None if data_dir is None else os.path.realpath(data_dir)
        self._resolve = resolve

    def resolved(self, sink: SinkConfig) -> SinkConfig:
        """Return what a target stands for where it names a connection."""
        return self._resolve(sink)

    def check(self, sink: SinkConfig) -> None:
        """Raise ``SINK_FORBIDDEN`` with everything that a caller must not ask for."""
        problems = Problems()
        parts = urlsplit(sink.uri)
        kind = _kind(parts.scheme)
        pairs = [(_parameter(kind, key), value) for key, value in parse_qsl(parts.query, keep_blank_values=True)]
        given = dict(pairs)
        for key in sorted(key for key, times in Counter(key for key, _ in pairs).items() if times > 1):
            # Which of them the client takes is its own affair, and what is looked at here must be what it takes.
            problems.add(f"sink.uri?{key}", "comes twice, under one name or two")
        target = kind_of(self._resolve(sink).uri)
        own = {key: value for key, value in given.items() if key not in target.option_keys}
        options = {key.replace("_", "-") for key in sink.options} | (given.keys() - own.keys())
        for key in sorted(target.server_only_options & options):
            problems.add(f"sink.{key}", "is for the server's own configuration")
        for key, value in sorted(own.items()):
            if key not in target.caller_parameters:
                self._check_parameter(kind, key, value, own.get("skip-signature", "").lower() == "true", problems)
        for key in sorted(target.place_options):
            for place in filter(None, (sink.options.get(key), given.get(key))):
                self._check_other(f"sink.{key}", place, problems)
        for host in target.hosts(sink.uri):
            if not is_host(host):
                problems.add("sink.uri", f"{host!r} is no host that a caller may send the server to")
        if kind in _PREFIXES and not _BUCKET.fullmatch(parts.netloc):
            problems.add("sink.uri", "the name of a bucket or container has letters, digits, '.', '_' and '-'")
        self._check_place(sink, problems)
        if problems:
            raise PenstockError("SINK_FORBIDDEN", problems.text())

    def lies_inside(self, sink: SinkConfig, other: SinkConfig) -> bool:
        """Return whether a target lies in a folder of another one, whose readers would find its files among their own."""
        try:
            inner, outer = self._resolve(sink).uri, self._resolve(other).uri
        except PenstockError:
            # The other one names a connection that the server has no more.
            return False
        same_server = place_of(inner)[3] == place_of(outer)[3]
        return same_server and _canonical(inner).startswith(f"{_canonical(outer).rstrip('/')}/")

    def _check_other(self, path: str, uri: str, problems: Problems) -> None:
        """Note what forbids another target that an option names."""
        try:
            self.check(SinkConfig(uri))
        except PenstockError as error:
            problems.add(path, error.detail.replace("sink.uri: ", ""))

    def _check_parameter(self, kind: str, key: str, value: str, unsigned: bool, problems: Problems) -> None:
        path = f"sink.uri?{key}"
        if key not in _ALLOWED.get(kind, frozenset()):
            problems.add(path, "a caller may not give it: it stands in a connection of the server's configuration")
        elif self._allow and key in _PLACES:
            problems.add(path, "where sink-allow limits targets, it comes from a connection of the server's configuration")
        elif key in _ADDRESSES and not _is_web_address(value):
            problems.add(path, "must be the http or https address of an object store")
        elif key in _ADDRESSES and kind != "s3" and not unsigned:
            # Unlike a signature of S3, what is sent there opens everything that the server's account may.
            problems.add(path, "the server's credentials are not sent to an address that a caller gives: use a connection")
        elif key in _NAME_VALUES and not _NAME_VALUES[key].fullmatch(value):
            problems.add(path, "has characters that no such name has")

    def _check_place(self, sink: SinkConfig, problems: Problems) -> None:
        resolved = self._resolve(sink)
        if ".." in unquote(urlsplit(sink.uri).path).split("/"):
            problems.add("sink.uri", "must not have '..' in its path")
            return
        place = _canonical(resolved.uri)
        if self._data_dir is not None and _kind(urlsplit(resolved.uri).scheme) == "file":
            directory = place.removeprefix("file://")
            if _is_within(directory, self._data_dir) or _is_within(self._data_dir, directory):
                problems.add("sink.uri", "lies in the server's data directory, or around it")
        if self._allow and not any(_matches(pattern, one) for pattern in self._allow for one in (place, _canonical(sink.uri))):
            problems.add("sink.uri", "no pattern of the server's sink-allow matches it")


def _kind(scheme: str) -> str:
    """Return the kind of place that a scheme names; tables of a lake, as in ``delta+s3``, lie in an object store."""
    bare = scheme.rpartition("+")[2]
    return _KINDS.get(bare, bare)


def _parameter(kind: str, key: str) -> str:
    """Return a parameter under the name that the list has, whichever of its names was used."""
    name = key.lower().replace("_", "-")
    for prefix in _PREFIXES.get(kind, ()):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _is_web_address(value: str) -> bool:
    try:
        parts = urlsplit(value)
        host = (parts.hostname or "").lower()
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and "@" not in parts.netloc and is_host(host)


def place_of(uri: str) -> tuple[str, str, str, frozenset[tuple[str, str]]]:
    """Return where a target is: kind, bucket, path, and what of its parameters says on which server or account."""
    parts = urlsplit(uri)
    kind = _kind(parts.scheme)
    given = ((_parameter(kind, key), value) for key, value in parse_qsl(parts.query, keep_blank_values=True))
    return kind, parts.netloc, parts.path, frozenset((key, value) for key, value in given if key in _PLACES)


def _canonical(uri: str) -> str:
    """Return the place of a target: kind, bucket and path, as patterns see it; of a directory the true path."""
    parts = urlsplit(uri)
    path = re.sub("/+", "/", unquote(parts.path)).rstrip("/")
    if _kind(parts.scheme) == "file":
        return f"file://{os.path.realpath(path or '/')}"
    return f"{_kind(parts.scheme)}://{parts.netloc}{path}"


def _canonical_pattern(pattern: str) -> str:
    scheme, _, rest = pattern.partition("://")
    kind = _kind(scheme)
    if kind != "file":
        return f"{kind}://{rest.rstrip('/')}"
    # Up to the first part with a wildcard it is a directory, which may be reached by links.
    fixed, tail = rest, ""
    while any(mark in fixed for mark in "*?["):
        fixed, _, last = fixed.rpartition("/")
        tail = f"/{last}{tail}"
    return f"file://{os.path.realpath(fixed or '/').rstrip('/')}{tail.rstrip('/')}"


def _matches(pattern: str, place: str) -> bool:
    """Return whether a pattern matches a place; one without wildcards matches everything below itself as well."""
    if not any(mark in pattern for mark in "*?["):
        return place == pattern or place.startswith(f"{pattern}/")
    return fnmatch.fnmatchcase(place, pattern)


def _is_within(path: str, directory: str) -> bool:
    return os.path.commonpath((path, directory)) == directory
