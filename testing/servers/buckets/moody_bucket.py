"""An object store of one bucket in memory that speaks S3, and whose mood a test sets: well, hanging, refusing, full, forbidding.

It keeps what it was given through every mood, as a store does that is down for a while. Signatures are not looked at. Runs in tests.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from testing.servers.loopback import http_server

_HANG_S = 120.0
_MOMENT = "2026-11-16T00:00:00.000Z"


class Mood(Enum):
    """How the store is."""

    WELL = "it answers"
    HANGS = "it takes requests and answers none"
    REFUSES = "it ends every connection"
    FULL = "it takes no object more"
    FORBIDS = "it lets nobody write"


_REFUSED = {Mood.FULL: (507, "InsufficientStorage"), Mood.FORBIDS: (403, "AccessDenied")}


class MoodyBucket:
    """The store. ``mood`` may be set at any time; who hangs goes on, or is sent away, when it changes."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.objects: dict[str, bytes] = {}
        self.requests = 0
        """How many came that were not answered well."""
        self._changed = threading.Condition()
        self._mood = Mood.WELL

    @property
    def mood(self) -> Mood:
        """Return how the store is."""
        return self._mood

    @mood.setter
    def mood(self, mood: Mood) -> None:
        with self._changed:
            self._mood, self.requests = mood, 0
            self._changed.notify_all()

    def uri(self, prefix: str, **options: str) -> str:
        """Return the sink URI of a prefix."""
        given = {"endpoint": self.endpoint, "region": "x", "access-key-id": "a", "secret-access-key": "b", **options}
        return f"s3://bucket/{prefix}?" + "&".join(f"{key}={value}" for key, value in given.items())

    def admit(self, writes: bool) -> tuple[int, str] | None:
        """Return how a request is turned away: status and code, 0 where the connection ends; None where it is not."""
        with self._changed:
            mood = self._mood
            if mood is Mood.WELL or (mood in _REFUSED and not writes):
                return None
            self.requests += 1
            if mood is Mood.HANGS:
                self._changed.wait_for(lambda: self._mood is not mood, _HANG_S)
            return _REFUSED.get(mood, (0, ""))

    def put(self, key: str, content: bytes, if_match: str, if_none_match: str) -> int:
        """Keep an object; return the status."""
        with self._changed:
            there = self.objects.get(key)
            if (if_none_match and there is not None) or (if_match and (there is None or tag(there) != if_match)):
                return 412
            self.objects[key] = content
            return 200


def tag(content: bytes) -> str:
    """Return an object's tag."""
    return f'"{hashlib.md5(content, usedforsecurity=False).hexdigest()}"'


@contextmanager
def moody_bucket() -> Iterator[MoodyBucket]:
    """Serve a bucket until the block ends."""
    bucket = MoodyBucket()
    with http_server(_Handler, bucket=bucket) as address:
        bucket.endpoint = address
        try:
            yield bucket
        finally:
            bucket.mood = Mood.WELL


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        bucket: MoodyBucket = self.server.bucket  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        refused = bucket.admit(self.command == "PUT")
        if refused is not None:
            status, code = refused
            self.close_connection = not status
            if status:
                self._answer(status, f"<Error><Code>{code}</Code></Error>".encode())
            return
        parts = urlsplit(self.path)
        key = unquote(parts.path).removeprefix("/bucket").lstrip("/")
        if self.command == "PUT":
            match, none = self.headers.get("if-match", ""), self.headers.get("if-none-match", "")
            self._answer(bucket.put(key, body, match, none), b"", tag(body))
        elif self.command == "POST":
            keys = [unescape(found) for found in re.findall(r"<Key>(.*?)</Key>", body.decode())]
            for one in keys:
                bucket.objects.pop(one, None)
            self._answer(
                200, f"<DeleteResult>{''.join(f'<Deleted><Key>{escape(one)}</Key></Deleted>' for one in keys)}</DeleteResult>".encode()
            )
        elif not key:
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            self._answer(200, _listing(bucket, query.get("prefix", ""), query.get("delimiter", "")))
        elif (content := bucket.objects.get(key)) is None:
            self._answer(404)
        else:
            self._answer(200, content, tag(content))

    do_GET = do_HEAD = do_PUT = do_POST = _serve  # noqa: N815 - the names that http.server looks for

    def _answer(self, status: int, body: bytes = b"", etag: str = "") -> None:
        with contextlib.suppress(OSError):
            self.send_response(status)
            if etag:
                self.send_header("ETag", etag)
            self.send_header("Last-Modified", "Mon, 16 Nov 2026 00:00:00 GMT")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


def _listing(bucket: MoodyBucket, prefix: str, delimiter: str) -> bytes:
    found = {key: content for key, content in bucket.objects.items() if key.startswith(prefix)}
    below = {
        prefix + key[len(prefix) :].partition(delimiter)[0] + delimiter for key in found if delimiter and delimiter in key[len(prefix) :]
    }
    own = [key for key in sorted(found) if not delimiter or delimiter not in key[len(prefix) :]]
    entries = [
        f"<Contents><Key>{escape(key)}</Key><LastModified>{_MOMENT}</LastModified>"
        f"<ETag>{escape(tag(found[key]))}</ETag><Size>{len(found[key])}</Size></Contents>"
        for key in own
    ]
    entries += [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(below)]
    return f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(entries)}</ListBucketResult>".encode()
