"""What protects a Flight service on a port: TLS in which both sides show certificates, and the token that carries them to readers.

gRPC takes a message whole before anybody is asked for a token. So a stranger must not get as far as a message: the service asks every
caller for a certificate, in the handshake, and only those that it made itself will do. It makes them at its start, for that run alone; its
own certificate too, unless the operator gives one. What a reader needs (the certificate by which it knows the service, its own with the
key) travels inside the token, as text, so no path of the server's machine means anything to it. Invariant: a token without certificates is
for services that ask for none. Runs in the server, which makes it, and wherever a client is.
"""

from __future__ import annotations

import base64
import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.model.clock import Clock
from penstock.model.decoding import decoded
from penstock.model.errors import PenstockError

_VALID_DAYS = 3650
"""A server makes new ones whenever it starts; until then they must not run out."""


class ReaderCertificates(msgspec.Struct, frozen=True):
    """What a reader needs for the handshake, all as PEM text: by what it knows the service, and what it shows itself. Holds a key.

    ``name`` is the one in the service's certificate where that is not its address: nobody else has a certificate of this authority.
    """

    ca: str
    certificate: str
    key: str
    name: str = ""

    def __repr__(self) -> str:
        return "ReaderCertificates(...)"


@dataclass(frozen=True)
class ServiceTls:
    """What the service needs: its certificate chain and key, by what it knows readers, and what those get."""

    certificate: bytes
    key: bytes
    readers_ca: bytes
    reader: ReaderCertificates

    def __repr__(self) -> str:
        return "ServiceTls(...)"


def join_token(call_token: str, reader: ReaderCertificates | None) -> str:
    """Return the token that readers get: the one of their calls, and their certificates where the service asks for them."""
    return call_token if reader is None else f"{call_token}.{base64.urlsafe_b64encode(msgspec.json.encode(reader)).decode()}"


def split_token(token: str) -> tuple[str, ReaderCertificates | None]:
    """Return the parts of a token; raise ``CONFIG_INVALID`` for one that was cut."""
    call_token, dot, rest = token.partition(".")
    if not dot:
        return token, None
    try:
        return call_token, decoded(base64.urlsafe_b64decode(rest), ReaderCertificates)
    except (ValueError, msgspec.DecodeError):
        raise PenstockError("CONFIG_INVALID", "the token of the event store does not parse: part of it is missing") from None


def make_tls(names: Sequence[str], clock: Clock, given: tuple[bytes, bytes, bytes] | None = None) -> ServiceTls:
    """Make certificates for a service that readers reach under these names.

    With ``given`` (chain, key, and by what readers know them) the service shows the operator's certificate instead of its own.
    """
    root = _Signer("penstock event store", clock)
    reader, reader_key = root.issue("penstock reader", ())
    if given is None:
        certificate, key = root.issue("penstock event store", names)
        ca = root.certificate
    else:
        certificate, key, ca = given
    return ServiceTls(certificate, key, root.certificate, ReaderCertificates(ca.decode(), reader.decode(), reader_key.decode()))


class _Signer:
    """A key that exists only while certificates are made."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._clock = clock
        # Names of different roots differ: a chain is put together by them.
        self._name = _common_name(f"{name} {x509.random_serial_number() & (1 << 64) - 1:016x}")
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = _pem(self._signed(self._name, self._key, authority=True))

    def issue(self, name: str, hosts: Sequence[str]) -> tuple[bytes, bytes]:
        """Return a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        secret = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        return _pem(self._signed(_common_name(name), key, hosts)), secret

    def _signed(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, hosts: Sequence[str] = (), *, authority: bool = False
    ) -> x509.Certificate:
        now = dt.datetime.fromtimestamp(self._clock.now_ms() / 1000, dt.UTC)
        builder = x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=name,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            # Clocks of machines differ.
            not_valid_before=now - dt.timedelta(days=1),
            not_valid_after=now + dt.timedelta(days=_VALID_DAYS),
        ).add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        # Who is strict, as Python is from 3.13 on, refuses a chain without these.
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        builder = builder.add_extension(_usage(authority), critical=True)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_host_name(host) for host in hosts]), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
