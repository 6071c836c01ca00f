"""What tunes an HTTP target, and the address that its URI names. Runs anywhere.

``https+json://host/path?parameter=value`` is posted to as ``https://host/path?parameter=value``: parameters that are no options belong to
the address. Invariants: settings that exist are valid; ``shown`` has no secret.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit, urlunsplit

from penstock.format.protocols import CanalSettings, DataFormat, DebeziumSettings, Protocol
from penstock.model.errors import PenstockError
from penstock.model.table import TableSchema
from penstock.settings.loader import Problems, dotted_keys
from penstock.settings.masking import mask_uri
from penstock.sink.options import read_options
from penstock.target.hosts import is_host
from penstock.target.signatures import SECRET_PREFIX, secret_key

_TOKEN = re.compile(r"[\x21-\x7e]*")
_SECRET_CHARS_MIN = 4
_URL_SIGNS = "/%:?@!$&'()*+,;=~-._[]{}|\\^`<>\""
"""What stays as it was written in an address; everything else outside of ASCII is encoded."""
ROW_END = ",\n"
"""What stands behind each row of a body; a line break in a value is escaped, so it also tells where a row ends."""


class HttpFormat(StrEnum):
    """How a change stands in a body."""

    DEBEZIUM = "debezium"
    CANAL_JSON = "canal-json"


class CloudEvents(StrEnum):
    """Whether and how bodies are CloudEvents: one for each row, or one for each batch, in the body or by headers."""

    NONE = "none"
    BATCH = "batch"
    STRUCTURED = "structured"
    BINARY = "binary"


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The options of an HTTP target."""

    cut_options: ClassVar[frozenset[str]] = frozenset({"format", "old_values", "batch_rows", "batch_size", "lanes", "cloudevents"})
    free_options: ClassVar[frozenset[str]] = cut_options | {
        *("flush_interval_ms", "one_task", "secret", "token", "request_timeout_ms", "retry_time_ms"),
        *("refusals_max", "dead_letter", "dead_letters_max", "ddl", "checkpoints", "ca"),
    }

    flush_interval_ms: int = field(default=5_000, metadata={"range": (100, 600_000)})
    format: HttpFormat = HttpFormat.DEBEZIUM
    old_values: bool = True
    batch_rows: int = field(default=500, metadata={"range": (1, 100_000)})
    batch_size: int = field(default=1 << 20, metadata={"range": (1 << 10, 64 << 20)})
    lanes: int = field(default=4, metadata={"range": (1, 64)})
    one_task: bool = False
    secret: str = ""
    token: str = ""
    request_timeout_ms: int = field(default=30_000, metadata={"range": (100, 600_000)})
    retry_time_ms: int = field(default=60_000, metadata={"range": (100, 3_600_000)})
    refusals_max: int = field(default=3, metadata={"range": (1, 100)})
    dead_letter: str = ""
    dead_letters_max: int = field(default=100, metadata={"range": (1, 100_000)})
    ddl: bool = True
    checkpoints: bool = False
    cloudevents: CloudEvents = CloudEvents.NONE
    ca: str = ""

    format_name: ClassVar[str] = "json"
    indexes_transactions: ClassVar[bool] = False

    @property
    def numbers_events(self) -> bool:
        """Return whether one task posts everything, so that there are no more connections than lanes."""
        return self.one_task

    @property
    def data_format(self) -> DataFormat:
        """Return how rows are encoded."""
        if self.format is HttpFormat.CANAL_JSON:
            return DataFormat(Protocol.CANAL_JSON, canal_json=CanalSettings(terminator=ROW_END))
        return DataFormat(Protocol.DEBEZIUM, debezium=DebeziumSettings(output_old_value=self.old_values, terminator=ROW_END))

    @property
    def secret_bytes(self) -> bytes:
        """Return the key of signatures; empty where nothing is signed."""
        return secret_key(self.secret)

    def needs_before(self, table: TableSchema) -> bool:
        """Return that keys travel, by which rows find their lane, and old values with them."""
        return True

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield (key, what is wrong with it) for every setting that cannot be used."""
        try:
            if self.secret and not self.secret_bytes:
                yield "secret", f"it has nothing behind {SECRET_PREFIX}, so nothing would be signed"
        except (binascii.Error, ValueError):
            yield "secret", f"what follows {SECRET_PREFIX} must be base64"
        if not _TOKEN.fullmatch(self.token):
            yield "token", "it must be of characters that a header takes: letters, digits and signs of ASCII, no blanks"


@dataclass(frozen=True, slots=True)
class Address:
    """Where bodies are posted to."""

    url: str
    host: str
    port: int
    credentials: str
    """What the Authorization header says; empty where the URI has no user."""
    shown: str
    """Host and path, for people: parameters of such addresses are often secrets."""
    secrets: tuple[str, ...] = ()
    """What of it is never shown, in each of the ways in which it may come back: user, password and values of parameters."""


def read_settings(uri: str, options: Mapping[str, Any]) -> tuple[str, HttpSettings]:
    """Return the URI without options, and the settings; raise with every fault."""
    address_uri, settings = read_options(HttpSettings, uri, options, _parameters(uri))
    problems = Problems()
    for key, what in settings.problems():
        problems.add(key, what)
    if settings.dead_letter:
        _check_dead_letter(settings.dead_letter, problems)
    problems.raise_if_any()
    return address_uri, settings


def address_of(uri: str) -> Address:
    """Return where a target's URI leads; raise ``SINK_URI_INVALID`` where that is nowhere."""
    parts = urlsplit(uri)
    scheme = parts.scheme.partition("+")[0]
    try:
        host, port = parts.hostname or "", (443 if scheme == "https" else 80) if parts.port is None else parts.port
    except ValueError as error:
        raise PenstockError("SINK_URI_INVALID", f"{mask_uri(uri)!r} has no valid port") from error
    if not port:
        raise PenstockError("SINK_URI_INVALID", f"{mask_uri(uri)!r} has no valid port")
    if not host:
        raise PenstockError("SINK_URI_INVALID", f"{mask_uri(uri)!r} names no host", "Write https+json://host/path.")
    if not is_host(host):
        raise PenstockError("SINK_URI_INVALID", f"{host!r} is no host that changes may be posted to")
    if any(ord(char) <= 32 for char in uri):
        raise PenstockError("SINK_URI_INVALID", f"{mask_uri(uri)!r} has a blank")
    shown_host = f"[{host}]" if ":" in host else host
    place = f"{shown_host}:{port}" if parts.port else shown_host
    credentials = ""
    given = [value for _, value in parse_qsl(parts.query)]
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        encoded = base64.b64encode(pair.encode()).decode()
        credentials = f"Basic {encoded}"
        given += [encoded, pair, *pair.split(":", 1), parts.password or ""]
    secrets = {form for value in given for form in (value, quote(value, safe=""), quote_plus(value)) if len(form) >= _SECRET_CHARS_MIN}
    path, query = (quote(part, safe=_URL_SIGNS) for part in (parts.path or "/", parts.query))
    return Address(
        urlunsplit((scheme, place, path, query, "")),
        host,
        port,
        credentials,
        urlunsplit((parts.scheme, place, path, "", "")),
        tuple(sorted(secrets)),
    )


def _parameters(uri: str) -> frozenset[str]:
    """Return the names of parameters that are part of the address: all that are no options."""
    try:
        names = {key for key, _ in parse_qsl(urlsplit(uri).query, keep_blank_values=True)}
    except ValueError:
        return frozenset()
    return frozenset(names - set(dotted_keys(HttpSettings)))


def _check_dead_letter(uri: str, problems: Problems) -> None:
    from penstock.target.settings import from_uri

    try:
        from_uri(uri)
    except PenstockError as error:
        problems.add("dead-letter", error.detail)
