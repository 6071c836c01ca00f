"""Certificates that the event store makes for its service and its readers."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from penstock.model.clock import SystemClock
from penstock.store.flight.credentials import make_tls


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "store.example"])
def test_a_strict_reader_and_a_strict_service_take_them(tmp_path: Path, host: str) -> None:
    made = make_tls([host], SystemClock())
    service, reader = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context, certificate, key, known in (
        (service, made.certificate, made.key, made.readers_ca),
        (reader, made.reader.certificate.encode(), made.reader.key.encode(), made.reader.ca.encode()),
    ):
        for name, text in (("certificate", certificate), ("key", key)):
            (tmp_path / name).write_bytes(text)
        context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
        context.load_verify_locations(cadata=known.decode())
        context.verify_mode = ssl.CERT_REQUIRED
        # Python's own choice from 3.13 on.
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    to_service, to_reader = ssl.MemoryBIO(), ssl.MemoryBIO()
    served = service.wrap_bio(to_service, to_reader, server_side=True)
    read = reader.wrap_bio(to_reader, to_service, server_hostname=host)
    ended: set[ssl.SSLObject] = set()
    for _ in range(4):
        for side in (read, served):
            try:
                side.do_handshake()
                ended.add(side)
            except ssl.SSLWantReadError:
                continue
    assert ended == {read, served}
