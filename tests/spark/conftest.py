"""Spark tests: one JVM per test process, started before anything of gRPC, because starting it forks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import DataStreamWriter

from penstock.cli.server_client import ServerClient
from penstock.feed.spark.session import SparkSettings, open_session
from penstock.model.clock import SystemClock
from penstock.source.dataserver.client import DataServerUpstream
from testing.checks.target_audit import checkpoint_of
from testing.servers.command_process import CommandProcess

HERE = Path(__file__).parent
LOOK_S, FEED_LOOK_S = 0.02, 0.2
# How long a feed may take on a busy machine; on an idle one it takes a few seconds.
FEED_S = 200.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and put them before all others: later, gRPC's threads would be there when the JVM is forked."""
    mine = [item for item in items if HERE in item.path.parents]
    for item in mine:
        item.add_marker(pytest.mark.spark)
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)


@pytest.fixture(scope="session")
def jvm() -> Iterator[None]:
    """Keep the process's JVM; a server that ends stops its session, and the next one gets a new session in the same JVM."""
    session = open_session(SparkSettings("local[2]"))
    yield
    session.stop()


@pytest.fixture
def upstream() -> Iterator[DataServerUpstream]:
    with CommandProcess("dataserver") as process:
        uri = process.wait_for("listening on ", 60).split()[0]
        with DataServerUpstream(uri) as client:
            yield client


class Waiting:
    """Waits for what has no notification: states of another process, and its files."""

    def __init__(self) -> None:
        self._clock = SystemClock()

    def until(
        self, what: str, condition: Callable[[], Any], timeout_s: float = FEED_S, explain: Callable[[], str] = str, look_s: float = LOOK_S
    ) -> Any:
        """Wait until a condition gives something true, and return that; where it does not in time, the explanation is shown."""
        deadline_s, never = self._clock.monotonic_s() + timeout_s, threading.Event()
        while not (found := condition()):
            assert self._clock.monotonic_s() < deadline_s, f"{what}: not within {timeout_s:.0f} s\n{explain()}"
            self._clock.wait(never, look_s)
        return found

    def feed(
        self, client: ServerClient, name: str, condition: Callable[[dict[str, Any]], bool], timeout_s: float = FEED_S
    ) -> dict[str, Any]:
        """Wait until a condition on a feed holds; return the feed."""

        def reached() -> dict[str, Any] | None:
            shown = client.show_feed(name)
            assert shown["state"] != "failed", shown["error"]
            return shown if condition(shown) else None

        return self.until(f"feed {name}", reached, timeout_s, look_s=FEED_LOOK_S)

    def drained(self, client: ServerClient, name: str, target: Path, ts: int) -> dict[str, Any]:
        """Wait until a feed's checkpoint has reached a ts and is published, which comes a moment later; return the feed."""
        shown = self.feed(client, name, lambda shown: shown["checkpoint_ts"] >= ts)
        self.until("the checkpoint is published", lambda: checkpoint_of(target) >= ts)
        return shown

    def finish(self, writer: DataStreamWriter, tries: int = 10) -> None:
        """Run a query to the end of what is there; again where Spark did not wait for its own Python process: it gives it ten seconds."""
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(FEED_S)
        except StreamingQueryException as error:
            if tries == 1 or "Python worker failed to connect back" not in str(error):
                raise
            self.finish(writer, tries - 1)
        finally:
            query.stop()


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()
