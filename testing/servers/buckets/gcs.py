"""A GCS server on loopback: ``gcp-storage-emulator`` from its wheel, with the calls of GCS's XML API that it lacks added in front of it.

The object-store library speaks the XML API; the emulator speaks the JSON API, and of the XML one it knows only GET and PUT of an object.
The front passes those on and maps the others: HEAD, DELETE and listings become JSON calls, and a conditional PUT is looked up first under a
lock, because the emulator has no conditions. So the suite shows that Penstock's URIs, paths and calls fit GCS's protocol; that the vendor
honours a condition is shown against S3 and Azure only. Runs in tests.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import format_datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

import httpx

from testing.servers.loopback import free_port, http_server, running

_PASSED_ON = ("Content-Range", "Content-Type")


@contextmanager
def gcs(directory: Path, bucket: str = "penstock-test") -> Iterator[str]:
    """Start an emulator with one bucket in a directory; yield the query parameters of its URIs."""
    program = Path(sys.executable).with_name("gcp-storage-emulator")
    if not program.exists():
        raise FileNotFoundError(f"{program}: install the test extra (gcp-storage-emulator)")
    directory.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [str(program), "start", "--host=127.0.0.1", f"--port={port}", "--in-memory", f"--default-bucket={bucket}"]
    emulator = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        try:
            return httpx.get(emulator, timeout=30.0).is_success
        except httpx.HTTPError:
            return False

    with running(command, directory, is_ready), _front(emulator) as base_url:
        account = {"gcs_base_url": base_url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        yield f"base-url={base_url}&service-account-key={quote(json.dumps(account), safe='')}"


@contextmanager
def _front(emulator: str) -> Iterator[str]:
    with httpx.Client(base_url=emulator, timeout=120.0) as client, http_server(_XmlApi, client=client, lock=threading.Lock()) as address:
        yield address


class _XmlApi(BaseHTTPRequestHandler):
    """Answers one connection: the XML API in terms of what the emulator knows."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer a listing of the bucket, or an object."""
        bucket, name, query = self._address()
        if not name:
            self._list(bucket, query)
            return
        wanted = {"Range": self.headers["Range"]} if self.headers["Range"] else {}
        found = self._client.get(f"/{bucket}/{quote(name, safe='')}", headers=wanted)
        meta = self._meta(bucket, name) if found.is_success else None
        if meta is None:
            self._answer(HTTPStatus.NOT_FOUND)
            return
        passed = {key: found.headers[key] for key in _PASSED_ON if key in found.headers}
        self._answer(HTTPStatus(found.status_code), found.content, {**_object_headers(meta), **passed})

    def do_HEAD(self) -> None:
        """Answer what is known of an object."""
        bucket, name, _ = self._address()
        meta = self._meta(bucket, name)
        if meta is None:
            self._answer(HTTPStatus.NOT_FOUND)
            return
        self._answer(HTTPStatus.OK, headers={**_object_headers(meta), "Content-Length": str(meta["size"])})

    def do_PUT(self) -> None:
        """Write an object; under ``x-goog-if-generation-match`` only over this generation, 0 being none."""
        bucket, name, _ = self._address()
        content = self.rfile.read(int(self.headers["Content-Length"] or 0))
        with self.server.lock:  # type: ignore[attr-defined]
            wanted, there = self.headers["x-goog-if-generation-match"], self._meta(bucket, name)
            if wanted is not None and wanted != ("0" if there is None else str(there["generation"])):
                self._answer(HTTPStatus.PRECONDITION_FAILED)
                return
            made = self._client.put(f"/{bucket}/{quote(name, safe='')}", content=content)
        meta = self._meta(bucket, name) if made.is_success else None
        self._answer(HTTPStatus(made.status_code), headers=_object_headers(meta) if meta else {})

    def do_DELETE(self) -> None:
        """Delete an object."""
        bucket, name, _ = self._address()
        gone = self._client.delete(f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}")
        self._answer(HTTPStatus.NO_CONTENT if gone.is_success else HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing; the emulator keeps a log."""

    @property
    def _client(self) -> httpx.Client:
        client: httpx.Client = self.server.client  # type: ignore[attr-defined]
        return client

    def _address(self) -> tuple[str, str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        bucket, _, name = parts.path.lstrip("/").partition("/")
        return unquote(bucket), unquote(name), parse_qs(parts.query)

    def _meta(self, bucket: str, name: str) -> dict[str, Any] | None:
        found = self._client.get(f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}")
        return found.json() if found.is_success else None

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        wanted: dict[str, str] = {key: query[key][0] for key in ("prefix", "delimiter") if key in query}
        found = self._client.get(f"/storage/v1/b/{bucket}/o", params=wanted)
        if not found.is_success:
            self._answer(HTTPStatus(found.status_code))
            return
        listed = found.json()
        contents = "".join(
            f"<Contents><Key>{escape(o['name'])}</Key><Size>{o['size']}</Size><LastModified>{o['updated']}</LastModified>"
            f"<ETag>{escape(_etag(o))}</ETag></Contents>"
            for o in listed.get("items", [])
        )
        folders = "".join(f"<CommonPrefixes><Prefix>{escape(p)}</Prefix></CommonPrefixes>" for p in listed.get("prefixes", []))
        self._answer(
            HTTPStatus.OK, f"<ListBucketResult>{contents}{folders}</ListBucketResult>".encode(), {"Content-Type": "application/xml"}
        )

    def _answer(self, status: HTTPStatus, content: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(content))} | (headers or {})).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)


def _object_headers(meta: dict[str, Any]) -> dict[str, str]:
    moment = dt.datetime.fromisoformat(str(meta["updated"])).astimezone(dt.UTC)
    return {
        "ETag": _etag(meta),
        "x-goog-generation": str(meta.get("generation", "1")),
        "Last-Modified": format_datetime(moment, usegmt=True),
    }


def _etag(meta: dict[str, Any]) -> str:
    return f'"{meta.get("md5Hash", meta.get("etag", ""))}"'
