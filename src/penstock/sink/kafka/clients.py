"""Kafka's client for one target: its configuration out of the URI, and its errors in our words.

Parameters of the URI say how brokers are entered (``security-protocol``, ``sasl-mechanism``, a user and password as in any URI, files of
certificates). Invariants: no text that is raised holds a credential; an error that is not surely for good counts as one that passes.
The library is imported when a target is opened. Runs on executors and beside the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

from penstock.model.errors import PenstockError
from penstock.settings.masking import mask_parts, mask_text, mask_uri
from penstock.sink.kafka.settings import Delivery, Format, KafkaSettings, TopicNames, prefix_problems

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException

CALLER_PARAMETERS = frozenset({"security-protocol", "sasl-mechanism", "schema-registry"})
FILE_PARAMETERS = frozenset({"ssl-ca", "ssl-certificate", "ssl-key", "ssl-key-password", "schema-registry-ca"})
"""What names files of the machine that opens the target, and what opens them."""
PARAMETERS = CALLER_PARAMETERS | FILE_PARAMETERS
_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_PORT = 9092
_RECONNECT_MS, _RECONNECT_MS_MAX = 10, 1_000
"""Clients connect to one broker after the other, half of the first apart, also where none has failed."""
_BUFFERED_KBYTES = 32 << 10
_BUFFERED_MESSAGES = 200_000
_FOR_GOOD: tuple[tuple[frozenset[int], str, str | None], ...] = (
    # Authorisation of topics, groups, the cluster and transactional ids; authentication; TLS.
    (
        frozenset({29, 30, 31, 33, 34, 53, 58, 65, -169, -181}),
        "SINK_UNWRITABLE",
        "Check user, password, certificates and the ACLs: topics, and groups and transactional ids that begin with penstock.",
    ),
    (frozenset({3, -188, -190}), "SINK_UNWRITABLE", "Make the topic, or set create-topics = true."),
    (
        frozenset({17}),
        "SINK_UNWRITABLE",
        "The cluster does not take this name, nor one that differs from another only in '.' and '_': choose another sink.topic.",
    ),
    (
        frozenset({32}),
        "SINK_UNWRITABLE",
        "A message has the time of its commit. Raise message.timestamp.before.max.ms and after.max.ms of the topic, or check the clocks.",
    ),
    (
        frozenset({87}),
        "SINK_UNWRITABLE",
        "A compacted topic takes no rows of a table without a key, which have none: set its cleanup.policy to delete.",
    ),
    (frozenset({50}), "SINK_UNWRITABLE", "Set transaction-timeout to at most transaction.max.timeout.ms of the brokers."),
    (frozenset({76}), "SINK_UNWRITABLE", "Set compression to one that the brokers take."),
    (frozenset({12}), "SINK_UNWRITABLE", "Raise offset.metadata.max.bytes of the brokers, by default 4096."),
    (frozenset({37, 38, 40, 44}), "SINK_UNWRITABLE", "Set partitions and replication-factor to what the cluster allows."),
    (frozenset({10, 18}), "SINK_MESSAGE_TOO_LARGE", None),
    (frozenset({35, -165}), "SINK_NO_TRANSACTIONS", None),
    (frozenset({-186}), "CONFIG_INVALID", None),
)
"""The library's codes that waiting does not mend, ours for them, and what helps."""
_NOT_LET_IN = frozenset({58, -169, -181})
_WAITED = frozenset({-185, -187, -192, -195})
"""Timed out, all brokers down, a message timed out, no transport."""
_NOT_REACHED = frozenset({-193, -195})
"""A name that cannot be resolved, no transport."""
_FENCED = frozenset({-144, 47, 90})
_LOG = logging.getLogger("penstock.sink.kafka")
_LOG.addHandler(logging.NullHandler())
_LOG.propagate = False


class OvertakenError(Exception):
    """Another attempt has begun with the same name, so the brokers take nothing more of this one."""


class Refusals:
    """Takes errors of connections from a client, and keeps the first that waiting does not mend: a wrong password, a wrong certificate.

    The client itself goes on trying, and says no more than that nobody answers. Which address it could not reach is kept too: it may be
    one that nobody wrote into the URI, because brokers tell clients where they are.
    """

    def __init__(self) -> None:
        self.found: KafkaError | None = None
        self.not_reached = ""

    def __call__(self, error: KafkaError) -> None:
        """Note an error."""
        if self.found is None and error.code() in _NOT_LET_IN:
            self.found = error
        if error.code() in _NOT_REACHED:
            self.not_reached = f"; last: {error.str()}"


@dataclass(frozen=True)
class KafkaAddress:
    """Where a target is: brokers, how they are entered, and the prefix of its topics. Holds secrets: never print it."""

    uri: str
    settings: KafkaSettings = field(repr=False)

    @property
    def name(self) -> str:
        """Return the URI as it may be shown."""
        return mask_uri(self.uri)

    @property
    def topics(self) -> TopicNames:
        """Return the names of its topics."""
        return TopicNames(unquote(urlsplit(self.uri).path).strip("/"), self.settings)

    def of_control(self, topic: str) -> KafkaAddress | None:
        """Return the target on the same brokers whose control topic this would be, by the same rule; None where it would be none's."""
        lead, _, tail = self.settings.control_topic.partition("{prefix}")
        prefix = topic.removeprefix(lead).removesuffix(tail)
        if topic != f"{lead}{prefix}{tail}" or not prefix:
            return None
        return replace(self, uri=urlunsplit(urlsplit(self.uri)._replace(path=f"/{prefix}")))

    @property
    def hosts(self) -> list[str]:
        """Return its brokers, each with its port."""
        listed = urlsplit(self.uri).netloc.rpartition("@")[2].split(",")
        return [host if host.rpartition(":")[2].isdigit() and ":" in host else f"{host}:{_PORT}" for host in listed if host]

    def parameter(self, name: str) -> str:
        """Return a parameter of the URI, empty where it is not given."""
        return dict(parse_qsl(urlsplit(self.uri).query)).get(name, "")

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the URI."""
        yield from prefix_problems(self.topics.prefix)
        if not self.hosts:
            yield "names no broker: kafka://host:9092/prefix"
        given = self.parameter("security-protocol").lower()
        if given and given not in _PROTOCOLS:
            yield f"security-protocol must be one of {', '.join(_PROTOCOLS)}"
        mechanism = self.parameter("sasl-mechanism").upper()
        if mechanism and mechanism not in _MECHANISMS:
            yield f"sasl-mechanism must be one of {', '.join(_MECHANISMS)}"
        registry = urlsplit(self.parameter("schema-registry"))
        if self.settings.protocol is Format.AVRO and (registry.scheme not in {"http", "https"} or not registry.hostname):
            yield "protocol avro needs schema-registry=https://host:8081"
        user = urlsplit(self.uri).netloc.rpartition("@")[0]
        if (mechanism or given.startswith("sasl")) and not user:
            yield "SASL needs a user and password: kafka://user:password@host:9092/prefix"

    def configuration(self) -> dict[str, Any]:
        """Return what every client of the target is made with."""
        user, _, password = urlsplit(self.uri).netloc.rpartition("@")[0].partition(":")
        files = {
            "ssl.ca.location": "ssl-ca",
            "ssl.certificate.location": "ssl-certificate",
            "ssl.key.location": "ssl-key",
            "ssl.key.password": "ssl-key-password",
        }
        made: dict[str, Any] = {key: self.parameter(name) for key, name in files.items() if self.parameter(name)}
        protocol = self.parameter("security-protocol").lower() or ("sasl_" if user else "") + ("ssl" if made else "plaintext")
        made |= {"bootstrap.servers": ",".join(self.hosts), "security.protocol": protocol, "client.id": "penstock", "logger": _LOG}
        if user:
            made |= {"sasl.username": unquote(user), "sasl.password": unquote(password)}
            made["sasl.mechanism"] = self.parameter("sasl-mechanism").upper() or "PLAIN"
        # The library wants no request to outlive a transaction.
        request_ms = min(self.settings.request_timeout_ms, self.settings.transaction_timeout_ms)
        made |= {"socket.timeout.ms": request_ms, "socket.keepalive.enable": True}
        made |= {"reconnect.backoff.ms": _RECONNECT_MS, "reconnect.backoff.max.ms": _RECONNECT_MS_MAX}
        # A client that begins again with the first brokers by itself, when none is connected, loses the one that has its transactions:
        # then calls wait for ever, whatever their time. Here a client that fails is left, and the next one begins anew.
        return made | {"metadata.recovery.strategy": "none"}

    def producer_configuration(self, name: str) -> dict[str, Any]:
        """Return what a producer is made with: a transactional one of this name, or one that is only idempotent."""
        settings = self.settings
        made = self.configuration() | {
            "enable.idempotence": True,
            "linger.ms": settings.linger_ms,
            "compression.type": settings.compression.value,
            # A little more than a message: its key, its headers and the batch around it.
            "message.max.bytes": settings.max_message_bytes + (64 << 10),
            "queue.buffering.max.kbytes": max(_BUFFERED_KBYTES, 4 * settings.max_message_bytes >> 10),
            "queue.buffering.max.messages": _BUFFERED_MESSAGES,
            "delivery.report.only.error": True,
        }
        if settings.delivery is Delivery.EXACTLY_ONCE:
            made |= {"transactional.id": name, "transaction.timeout.ms": settings.transaction_timeout_ms}
        else:
            made["message.timeout.ms"] = settings.transaction_timeout_ms
        return made

    @contextmanager
    def told(self, what: str, clients: Sequence[Any] = (), refusals: Refusals | None = None) -> Iterator[None]:
        """Turn errors of the library into ours; ``what`` was being done, by clients that tell what connections were refused."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            if refusals is not None and int(error.args[0].code()) in _WAITED:
                for client in clients:
                    client.poll(0)
                if refusals.found is not None:
                    self.fail(KafkaException(refusals.found), what)
                self.fail(error, what, refusals.not_reached)
            self.fail(error, what)

    def fail(self, error: KafkaException, what: str, more: str = "") -> NoReturn:
        """Raise our error for one of the library."""
        found = error.args[0]
        code = int(found.code())
        if code in _FENCED:
            raise OvertakenError(what) from error
        text = mask_parts(mask_text(f"{self.name}: {what}: {found.str()} ({found.name()}){more}"), self.uri)
        raise PenstockError(*_in_our_words(code, text)) from error


def _in_our_words(code: int, text: str) -> tuple[str, str, str | None]:
    """Return our code, text and hint; what is not known to be for good passes."""
    for codes, ours, hint in _FOR_GOOD:
        if code in codes:
            return ours, text, hint
    return "SINK_UNAVAILABLE", text, None


def library() -> Any:
    """Return Kafka's client library."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise PenstockError("MISSING_DEPENDENCY", "a Kafka target needs confluent-kafka: pip install 'penstock[kafka]'") from error
    return confluent_kafka
