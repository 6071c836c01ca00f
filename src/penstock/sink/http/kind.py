"""An address that takes JSON by POST as a kind of target. Runs on executors and in the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.model.errors import PenstockError
from penstock.model.finding import Finding, Level
from penstock.settings.loader import dotted_keys
from penstock.settings.masking import mask_text
from penstock.sink.http.settings import HttpSettings, address_of, read_settings
from penstock.sink.kind import LetterBox, TargetKind
from penstock.target.kind import SinkRun

if TYPE_CHECKING:
    from penstock.sink.contract import Sink, SinkMaintainer
    from penstock.target.storage import Guard


class _EveryName(frozenset[str]):
    """All names: what is no option of the target is a parameter of its address."""

    def __contains__(self, name: object) -> bool:
        return True


class HttpKind(TargetKind):
    """JSON batches by POST."""

    name = "http"
    option_keys = frozenset(dotted_keys(HttpSettings))
    server_only_options = frozenset({"ca"})
    caller_parameters = _EveryName()
    place_options = frozenset({"dead-letter"})

    def settings(self, uri: str, options: Mapping[str, Any]) -> tuple[str, HttpSettings]:
        """Return the URI without options, and the settings."""
        address_uri, settings = read_settings(uri, options)
        address_of(address_uri)
        return address_uri, settings

    def make_sink(self, uri: str, options: Mapping[str, Any], guard: Guard | None, run: SinkRun) -> Sink:
        """Return the sink of one task."""
        from penstock.sink.http.sink import HttpSink

        address_uri, settings = read_settings(uri, options)
        return HttpSink(address_of(address_uri), settings, run.feed, guard)

    def make_maintainer(
        self, uri: str, options: Mapping[str, Any], guard: Guard, run: SinkRun, answer_s_max: float | None = None
    ) -> SinkMaintainer:
        """Return the part that acts once per feed."""
        from dataclasses import replace

        from penstock.sink.http.maintainer import HttpMaintainer

        address_uri, settings = read_settings(uri, options)
        if answer_s_max is not None:
            time_ms = max(100, int(answer_s_max * 1000))
            settings = replace(
                settings,
                request_timeout_ms=min(settings.request_timeout_ms, time_ms),
                retry_time_ms=min(settings.retry_time_ms, time_ms),
            )
        return HttpMaintainer(address_of(address_uri), settings, run.feed, guard)

    def check(self, uri: str, options: Mapping[str, Any], feed: str | None) -> list[Finding]:
        """Return whether the address answers, and what is missing to trust what is posted there."""
        from penstock.sink.http.maintainer import HttpMaintainer

        address_uri, settings = read_settings(uri, options)
        address = address_of(address_uri)
        findings = []
        try:
            HttpMaintainer(address, settings, feed or "", None).check(feed or "penstock")
            findings.append(Finding("target: reachable", True, f"{address.shown} answers", "it answers a HEAD request"))
        except PenstockError as error:
            return [Finding("target: reachable", False, mask_text(f"[{error.code}] {error.detail}"), error.hint)]
        encrypted = address.url.startswith("https")
        findings.append(
            Finding(
                "target: encrypted", encrypted, "https" if encrypted else "http", "https, so that nobody reads along", level=Level.SHOULD
            )
        )
        signed = bool(settings.secret)
        wanted = "a secret, so that receivers can tell who posts"
        findings.append(Finding("target: signed", signed, "signed" if signed else "no secret", wanted, level=Level.SHOULD))
        kept = bool(settings.dead_letter)
        wanted = "a dead-letter place; without one the feed stops at rows that are refused"
        findings.append(Finding("target: dead letters", kept, "kept" if kept else "none", wanted, level=Level.NOTE))
        return findings

    def hosts(self, uri: str) -> Sequence[str]:
        """Return the host of the address."""
        return (urlsplit(uri).hostname or "",)

    def letter_box(self, uri: str, options: Mapping[str, Any], feed: str) -> LetterBox:
        """Return the messages that were refused for good."""
        from penstock.sink.http.letter_box import HttpLetterBox

        address_uri, settings = read_settings(uri, options)
        return HttpLetterBox(address_of(address_uri), settings, feed)


KIND = HttpKind()
