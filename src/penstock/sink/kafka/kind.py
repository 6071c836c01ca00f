"""Kafka as a kind of target. Runs on executors and in the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.model.errors import PenstockError
from penstock.settings.loader import dotted_keys
from penstock.settings.masking import mask_uri
from penstock.sink.kafka.clients import CALLER_PARAMETERS, PARAMETERS, KafkaAddress
from penstock.sink.kafka.settings import KafkaSettings
from penstock.sink.kind import TargetKind
from penstock.sink.options import read_options
from penstock.target.kind import SinkRun

if TYPE_CHECKING:
    from penstock.model.finding import Finding
    from penstock.sink.contract import Sink, SinkMaintainer
    from penstock.target.storage import Guard


class KafkaKind(TargetKind):
    """Messages in topics of Kafka."""

    name = "kafka"
    option_keys = frozenset(dotted_keys(KafkaSettings))
    server_only_options = frozenset({"claim-check"})
    caller_parameters = CALLER_PARAMETERS

    def settings(self, uri: str, options: Mapping[str, Any]) -> tuple[str, KafkaSettings]:
        """Return the URI of brokers and prefix, and the settings."""
        rest, settings = read_options(KafkaSettings, uri, options, PARAMETERS)
        if urlsplit(rest).scheme == "kafka" and (wrong := list(KafkaAddress(rest, settings).problems())):
            raise PenstockError("SINK_URI_INVALID", f"{mask_uri(uri)!r}: {'; '.join(wrong)}", "Use kafka://host:9092,host:9092/prefix.")
        return rest, settings

    def make_sink(self, uri: str, options: Mapping[str, Any], guard: Guard | None, run: SinkRun) -> Sink:
        """Return the sink of one task."""
        from penstock.sink.kafka.sink import KafkaSink

        return KafkaSink(KafkaAddress(*self.settings(uri, options)), run, guard)

    def make_maintainer(
        self, uri: str, options: Mapping[str, Any], guard: Guard, run: SinkRun, answer_s_max: float | None = None
    ) -> SinkMaintainer:
        """Return the part that acts once per feed."""
        from dataclasses import replace

        from penstock.sink.kafka.maintainer import KafkaMaintainer

        rest, settings = self.settings(uri, options)
        if answer_s_max is not None:
            settings = replace(settings, request_timeout_ms=min(settings.request_timeout_ms, max(int(answer_s_max * 1000), 1000)))
        return KafkaMaintainer(KafkaAddress(rest, settings), run, guard)

    def check(self, uri: str, options: Mapping[str, Any], feed: str | None) -> list[Finding]:
        """Return whether brokers answer, whose the target is, and whether they have transactions."""
        from penstock.sink.kafka.target_check import check_kafka

        return check_kafka(KafkaAddress(*self.settings(uri, options)), feed)

    def hosts(self, uri: str) -> Sequence[str]:
        """Return the brokers' hosts, and that of the schema registry."""
        address = KafkaAddress(uri, KafkaSettings())
        registry = urlsplit(address.parameter("schema-registry")).hostname
        return [*(urlsplit(f"//{host}").hostname or host for host in address.hosts), *((registry,) if registry else ())]


KIND = KafkaKind()
