"""The configuration of a server process, as a user writes it. Runs in the server."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.config.api_settings import ApiSettings, is_loopback
from penstock.config.capture_settings import CaptureSettings, receiver_problems
from penstock.config.flight_settings import FlightSettings
from penstock.feed.spark.executors import is_one_machine
from penstock.meta.engine import EMBEDDED_FILE, MetaSettings, sqlite_url
from penstock.puller.log_service import LogServiceSettings
from penstock.store.settings import StoreSettings

_PORT_MAX = 65_535
_MASTER = re.compile(r"local(\[[^\]]+\])?|local-cluster\[[^\]]+\]|(spark|k8s|mesos)://.+|yarn")
_LOCAL_CORES = re.compile(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?")
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")
_SOURCE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


@dataclass(frozen=True)
class SupervisorSettings:
    """How a server claims and restarts feeds.

    Attributes:
        lease_s: how long a feed stays with a server that does not renew; another one takes it afterwards.
        scan_interval_s: how often new and abandoned feeds are looked for.
        backoff_s: the first pause before a restart after a transient error; it doubles up to ``backoff_max_s``.
        feeds_max: how many feeds one server runs.
        starts_at_once: how many runs start at the same time; the others wait for their turn.
        rebalance_interval_s: how often a server that has more feeds than another hands one over; 0 for never.
        stall_s: after how long without progress a feed that has work is a problem.
    """

    lease_s: float = 12.0
    scan_interval_s: float = 1.0
    backoff_s: float = 0.5
    backoff_max_s: float = 30.0
    feeds_max: int = 64
    starts_at_once: int = 2
    rebalance_interval_s: float = 30.0
    stall_s: float = 60.0

    def problems(self) -> list[tuple[str, str]]:
        """Return every invalid field with what is wrong."""
        found = []
        if not 1 <= self.lease_s <= 3600:
            found.append(("lease", "must be between 1 s and 1 h"))
        if not 0.05 <= self.scan_interval_s <= self.lease_s:
            found.append(("scan-interval", "must be between 50 ms and the lease"))
        if not 0 < self.backoff_s <= self.backoff_max_s:
            found.append(("backoff", "must be positive and at most backoff-max"))
        if not 1 <= self.feeds_max <= 10_000:
            found.append(("feeds-max", "must be between 1 and 10000"))
        if not 1 <= self.starts_at_once <= 1000:
            found.append(("starts-at-once", "must be between 1 and 1000"))
        if not 0 <= self.rebalance_interval_s <= 86_400:
            found.append(("rebalance-interval", "must be between 0 (never) and 24 h"))
        if not 1 <= self.stall_s <= 86_400:
            found.append(("stall", "must be between 1 s and 24 h"))
        return found


@dataclass(frozen=True)
class RereadSettings:
    """How doubted tables are read again.

    Attributes:
        delay_s: how long a doubt waits for others of its table.
        backoff_s: the first pause after a re-read that failed; it doubles up to ``backoff_max_s``.
        tasks: how many Spark tasks read a table at once.
        rows_per_second: how many rows they read per second at most, all together; 0 for as many as they can.
    """

    delay_s: float = 2.0
    backoff_s: float = 5.0
    backoff_max_s: float = 600.0
    tasks: int = 4
    rows_per_second: int = 0

    def problems(self) -> list[tuple[str, str]]:
        """Return every invalid field with what is wrong."""
        found = []
        if not 0 <= self.delay_s <= 86_400:
            found.append(("delay", "must be between 0 and 24 h"))
        if not 0 < self.backoff_s <= self.backoff_max_s:
            found.append(("backoff", "must be positive and at most backoff-max"))
        if not 1 <= self.tasks <= 1000:
            found.append(("tasks", "must be between 1 and 1000"))
        if self.rows_per_second < 0:
            found.append(("rows-per-second", "must not be negative"))
        return found


@dataclass(frozen=True)
class SparkConfig:
    """Where Spark runs: its master, the driver's heap, further settings as they are; ``warm_up`` runs an empty query at the start.

    ``cores_max`` is how many cores of a standalone cluster the server takes; without a bound the first server takes them all. ``archive``
    is what ``penstock package`` made, where executors do not have this installation at the same path. ``tables`` are static tables that
    filters of feeds may join with: a name each, with ``format:path``, as in ``parquet:/data/countries``.
    """

    master: str = "local[*]"
    driver_memory: str = "1g"
    warm_up: bool = True
    cores_max: int = 4
    archive: str = ""
    conf: dict[str, str] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)

    def problems(self) -> list[tuple[str, str]]:
        """Return every invalid field with what is wrong."""
        found = [(f"tables.{name}", "must be format:path") for name, place in self.tables.items() if not place.partition(":")[2]]
        if not _MASTER.fullmatch(self.master):
            found.append(("master", "must be local[N], local-cluster[N,CORES,MiB], spark://host:port, k8s://… or yarn"))
        found += [] if 1 <= self.cores_max <= 100_000 else [("cores-max", "must be between 1 and 100000")]
        if self.archive and not self.archive.endswith((".tar.gz", ".tgz")):
            found.append(("archive", "must be the .tar.gz of `penstock package`, as a path or a URI that executors reach"))
        return found

    @property
    def on_this_machine(self) -> bool:
        """Return whether all executors are processes of this machine."""
        return is_one_machine(self.master)

    @property
    def cores(self) -> int | None:
        """Return how many tasks run at once, as far as master and settings tell; None where the cluster decides."""
        conf = self.effective_conf
        local = _LOCAL_CORES.fullmatch(self.master)
        if local:
            return (os.cpu_count() or 1) if local[1] == "*" else int(local[1] or 1)
        cluster = _LOCAL_CLUSTER.fullmatch(self.master)
        if cluster:
            return int(cluster[1]) * int(cluster[2])
        counted = "spark.cores.max" if self.master.startswith("spark://") else "spark.executor.instances"
        each = "1" if self.master.startswith("spark://") else conf.get("spark.executor.cores", "1")
        given = conf.get(counted, "")
        return int(given) * int(each) if given.isdecimal() and each.isdecimal() else None

    @property
    def effective_conf(self) -> dict[str, str]:
        """Return Spark's settings; the given ones win."""
        shared = {"spark.cores.max": str(self.cores_max)} if self.master.startswith("spark://") else {}
        return shared | self.conf


@dataclass(frozen=True)
class SourceConfig:
    """A source with a name: its URI, and where executors read what is captured of it."""

    uri: str
    flight_port: int = 0
    capturing: CaptureSettings = field(default_factory=CaptureSettings, metadata={"flatten": True})

    def __repr__(self) -> str:
        return "SourceConfig(...)"

    def problems(self) -> list[tuple[str, str]]:
        """Return every invalid field with what is wrong."""
        found = [] if "://" in self.uri else [("uri", _NO_URI)]
        return found + self.capturing.problems_with(self.uri) + ([] if 0 <= self.flight_port <= _PORT_MAX else [("flight-port", _NO_PORT)])


_NO_URI = "must be a URI like dataserver://host:port"
_NO_PORT = f"must be between 0 (any free port) and {_PORT_MAX}"


@dataclass(frozen=True)
class ServerConfig:
    """One server process. ``owner`` names it among servers that share a meta database; by default it is made from host and process.

    ``source`` is what feeds capture that name none, ``sources`` are those that they name. ``sink_allow`` has patterns of the targets that
    callers may use, all where it is empty; ``connections`` are those with a name. Without ``grpc_port`` nobody subscribes over gRPC.
    """

    source: str = ""
    data_dir: Path = Path("penstock-data")
    meta_url: str | None = None
    owner: str | None = None
    http_host: str = "127.0.0.1"
    http_port: int = 8300
    grpc_port: int | None = None
    flight_host: str = "127.0.0.1"
    flight_port: int = 0
    capturing: CaptureSettings = field(default_factory=CaptureSettings, metadata={"flatten": True})
    flight: FlightSettings = field(default_factory=FlightSettings, metadata={"flatten": True})
    spark: SparkConfig = field(default_factory=SparkConfig)
    store: StoreSettings = field(default_factory=StoreSettings)
    log_service: LogServiceSettings = field(default_factory=LogServiceSettings)
    meta: MetaSettings = field(default_factory=MetaSettings)
    supervisor: SupervisorSettings = field(default_factory=SupervisorSettings)
    reread: RereadSettings = field(default_factory=RereadSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    sink_allow: tuple[str, ...] = ()
    connections: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, SourceConfig] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"ServerConfig(data_dir={str(self.data_dir)!r}, http_port={self.http_port})"

    def problems(self) -> list[tuple[str, str]]:
        """Return every invalid field with what is wrong."""
        ports = {"http-port": self.http_port, "grpc-port": self.grpc_port or 0, "flight-port": self.flight_port}
        found = [(key, _NO_PORT) for key, port in ports.items() if not 0 <= port <= _PORT_MAX]
        if not self.source and not self.sources:
            found.append(("source", "is required"))
        elif self.source and "://" not in self.source:
            found.append(("source", _NO_URI))
        wrong = [name for name in self.sources if not _SOURCE_NAME.fullmatch(name)]
        found += [(f"sources.{name}", "its name must have lower-case letters, digits, '-' and '_' only") for name in wrong]
        if not (is_loopback(self.http_host) or self.api.tls_certificate or self.api.plain_text):
            found.append(
                ("http-host", f"{self.http_host} is reached by other machines: give api.tls-certificate, or say api.plain-text = true")
            )
        found += self.capturing.problems_with(self.source)
        found += receiver_problems(self.receivers_total, self.spark, is_shared=bool(self.store.objects))
        if self.flight.flight_plain_text and not is_loopback(self.flight_host):
            # gRPC takes a message of any size before anybody is asked for the token.
            found.append(
                ("flight-plain-text", f"{self.flight_host} is reached by other machines, and without TLS nothing bounds what they send")
            )
        found += [("sink-allow", f"{pattern!r} must look like s3://bucket/prefix*") for pattern in self.sink_allow if "://" not in pattern]
        return found

    @property
    def receivers_total(self) -> int:
        """Return how many receivers all sources have together."""
        # A source that could not be read is none, and told by itself.
        captures = [self.capturing, *(given.capturing for given in self.sources.values() if isinstance(given, SourceConfig))]
        return sum(given.receivers for given in captures if given.on_executors)

    @property
    def effective_meta_url(self) -> str:
        """Return the meta database's URL: the given one, or an embedded database in the data directory."""
        return self.meta_url or sqlite_url(self.data_dir / EMBEDDED_FILE)
