"""An address that takes JSON, for the contract suite of sinks: what a receiver rebuilds from what it was posted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.model.batch import Op
from penstock.sink.http.maintainer import HttpMaintainer
from penstock.sink.http.settings import address_of, read_settings
from penstock.sink.http.sink import HttpSink
from testing.servers.http_receiver import http_receiver
from testing.targets.kit import Kit

_OPS = {"c": Op.INSERT, "u": Op.UPDATE, "d": Op.DELETE}


@contextmanager
def http_kit(_: Path) -> Iterator[Kit]:
    """Yield an address on loopback as target."""
    with http_receiver() as receiver:
        uri, settings = read_settings(receiver.uri, {"batch-size": 2048, "checkpoints": True})
        address = address_of(uri)

        def state(schema: str, table: str) -> dict[int, str | None]:
            return {row["id"]: row["note"] for row in receiver.state(f"{schema}.{table}")}

        def changes(schema: str, table: str) -> list[tuple[int, int, int, str | None]]:
            found = []
            for event in receiver.changes[f"{schema}.{table}"]:
                row = event["after"] or event["before"]
                found.append((event["source"]["commit_ts"], int(_OPS[event["op"]]), row["id"], row["note"]))
            return found

        yield Kit(
            lambda: HttpSink(address, settings, "mine"),
            lambda: HttpMaintainer(address, settings, "mine", None),
            state,
            changes,
            published_ts=lambda: receiver.checkpoint_ts,
            owned=False,
        )
