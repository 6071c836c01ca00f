"""``make bench NAME=scale``: 10,000 tables, 1,000 feeds, 20 servers, 100 executors, without any of them.

Planner, packing, barrier, meta database, supervisors and the event store's planning are the product's own; tasks, runs and the rows of
the event store are simulated, and so is the time in which a server dies (``testing/paths/wide_feed.py``). CPU is that of the thread that
does the work, without what the simulation takes; of a database server, that of its process. What does not grow more than its subject is a
bar as the cost of each at ten times the size; what a fleet needs is computed from the costs of the parts, and ``docs/scale.md`` says where
it bends first. Spark's own cost of a job is that of ``bench engine``.
"""

from __future__ import annotations

import logging
import random
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path

import psutil

from benchmarks.report import Bar, Report, say
from penstock.config.server_tree import SupervisorSettings
from penstock.feed.settings import FeedSettings
from penstock.feed.window.fence import driver_meta
from penstock.feed.window.packing import pack_by_bytes, tasks_for
from penstock.feed.window.planner import WindowPlanner
from penstock.feed.window.window_job import WindowJobs
from penstock.meta.database import MetaDatabase
from penstock.meta.engine import sqlite_url
from penstock.meta.records import FeedRecord
from penstock.model.ddl import DdlEvent, DdlType
from penstock.model.errors import PenstockError
from penstock.model.span import DDL_SPAN, Span
from penstock.server.feeds.supervisor import Supervisor
from penstock.server.source_address import SourceFeeds, SourcePlace
from penstock.store.contract import WindowWish
from penstock.store.event_store import ColumnarEventStore
from testing.paths.wide_feed import (
    BASE_TS,
    SOURCE,
    LivingRuns,
    SimulatedJobs,
    SimulatedStore,
    StatementCounter,
    context_of,
    cpu_of,
    create_feed,
    tables_of,
)
from testing.servers.loopback_server import mariadb
from testing.twins.clock import SimulatedClock

TABLES, TABLES_QUICK = 10_000, 4_000
FEEDS, FEEDS_QUICK = 1_000, 300
SERVERS, SERVERS_QUICK = 20, 6
FLEET_FEEDS, FLEET_SERVERS = 1_000, 20
TASKS = 400
"""100 executors with 4 cores each."""
LESS = 10
"""The smaller size is so many times smaller."""
WINDOWS, WINDOWS_QUICK = 5, 3
ACTIVE = 10
META_S, META_QUICK_S = 10.0, 4.0
META_FEEDS = 8
_SHARED_MEMORY = Path("/dev/shm")
_TAKEOVER_S_MAX = 120


def run(quick: bool) -> Report:
    """Run the benchmark at its full or quick size."""
    tables, feeds, servers = (TABLES_QUICK, FEEDS_QUICK, SERVERS_QUICK) if quick else (TABLES, FEEDS, SERVERS)
    windows = WINDOWS_QUICK if quick else WINDOWS
    # It says that a database without a key keeps credentials as they are.
    logging.getLogger("penstock.meta.sealing").setLevel(logging.ERROR)
    say(f"scale: {tables:,} tables, {feeds:,} feeds, {servers} servers, {TASKS} tasks; each beside {LESS} times fewer")
    # Flushing to a disk that others use is not what is measured.
    with tempfile.TemporaryDirectory(prefix="penstock-bench-scale-", dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None) as folder:
        root = Path(folder)
        small = window_costs(root / "small", tables // LESS, windows)
        large = window_costs(root / "large", tables, windows)
        narrow = window_costs(root / "narrow", ACTIVE, windows)
        packing = packing_s(tables)
        store = {count: store_plan_s(root / f"store-{count}", count) for count in (tables // LESS, tables)}
        few = assignment(root / "few", max(2, servers // LESS), feeds // LESS)
        many = assignment(root / "many", servers, feeds)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-scale-") as folder:
        meta = meta_costs(Path(folder), META_QUICK_S if quick else META_S)
    windows_per_s = FLEET_FEEDS / FeedSettings().flush_interval_s
    server_cores = windows_per_s / FLEET_SERVERS * meta["client_cpu_s"]
    return Report(
        "scale",
        (
            Bar("CPU of an idle window, per table", large["idle_s"] / LESS / small["idle_s"], 1.5, at_least=False),
            Bar("CPU of a window in which all tables work, per table", large["busy_s"] / LESS / small["busy_s"], 1.5, at_least=False),
            Bar("CPU of a barrier that ends all tables, per table", large["barrier_s"] / LESS / small["barrier_s"], 1.5, at_least=False),
            Bar("CPU of the store's plan, per span", store[tables] / LESS / store[tables // LESS], 1.5, at_least=False),
            Bar(
                "CPU of a server's look at all feeds, per feed",
                many["look_s"] / feeds / (few["look_s"] / (feeds // LESS)),
                1.5,
                at_least=False,
            ),
            Bar(
                "statements of a window of 10 tables beside all others",
                large["light_statements"] / narrow["light_statements"],
                1,
                at_least=False,
            ),
            Bar(
                "statements of a server's look, to those at fewer feeds",
                many["look_statements"] / few["look_statements"],
                1.5,
                at_least=False,
            ),
            Bar("takeover of a dead server's feeds, simulated s", many["takeover_s"], 15, at_least=False),
            Bar("cores of MariaDB for 1,000 feeds, a window each 5 s", windows_per_s * meta["server_cpu_s"], 1, at_least=False),
            Bar("cores of each of 20 servers for these windows, without Spark", server_cores, 0.25, at_least=False),
        ),
        {
            **{f"window_{name}": round(value, 5) for name, value in large.items()},
            "packing_s": round(packing, 5),
            "store_plan_s": round(store[tables], 5),
            **{f"fleet_{name}": round(value, 5) for name, value in many.items()},
            **{f"meta_{name}": round(value, 5) for name, value in meta.items()},
        },
    )


class Windows:
    """A feed over many tables, and its windows one after the other."""

    def __init__(self, root: Path, url: str, name: str, tables: int, active: int) -> None:
        self.tables = tables_of(tables)
        self.store, self.jobs = SimulatedStore(self.tables, active), SimulatedJobs(TASKS)
        with MetaDatabase(url) as server:
            context = context_of(server, url, name, create_feed(server, name, self.tables), root, TASKS)
        self.meta = driver_meta(url)
        # A simulated store has no connection that could be made anew elsewhere, which is all that it lacks.
        self._windows = WindowJobs(context, WindowPlanner(context, self.meta, self.store), self.jobs)  # type: ignore[arg-type]
        self._name = name

    def window(self) -> None:
        """Plan, deliver and commit a window."""
        planned = self._windows.plan()
        if planned is None:
            raise PenstockError("INTERNAL", "a window is missing")
        self._windows.commit(planned, self._windows.deliver(planned))

    def cost(self, windows: int) -> tuple[float, float]:
        """Return CPU seconds and statements of a window, the lowest of several, after one that is not counted."""
        self.window()
        found = []
        for _ in range(windows):
            with StatementCounter() as counter:
                found.append((cpu_of(self.window, self.store, self.jobs), counter.statements))
        return min(found)

    def drop_all(self) -> float:
        """Return the CPU seconds of a window at whose end all tables are dropped."""
        dropped = tuple(table.table_id for table in self.tables)
        ts = self.meta.checkpoint_ts(self._name) + 1_000
        self.store.ddls = (DdlEvent(ts, DdlType.DROP_SCHEMA, "DROP DATABASE shop", "shop", (), dropped),)
        return cpu_of(self.window, self.store, self.jobs)


def window_costs(root: Path, tables: int, windows: int) -> dict[str, float]:
    """Return what windows over so many tables cost: idle, with a few tables at work, with all of them, and ended by a barrier."""
    root.mkdir()
    url = sqlite_url(root / "meta.db")
    idle_s, idle_statements = Windows(root, url, "idle", tables, 0).cost(windows)
    light_s, light_statements = Windows(root, url, "light", tables, ACTIVE).cost(windows)
    busy = Windows(root, url, "busy", tables, tables)
    busy_s, busy_statements = busy.cost(windows)
    found = {
        "idle_s": idle_s,
        "idle_statements": idle_statements,
        "light_s": light_s,
        "light_statements": light_statements,
        "busy_s": busy_s,
        "busy_statements": busy_statements,
        "barrier_s": busy.drop_all(),
    }
    say(f"  {tables:,} tables: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items()))
    busy.meta.close()
    return found


def packing_s(tables: int) -> float:
    """Return the CPU seconds of packing so many dispatchers of random sizes."""
    sizes = [random.Random(n).randrange(1 << 22) for n in range(tables)]
    before_s = time.thread_time()
    groups = pack_by_bytes(list(zip(sizes, sizes, strict=True)), tasks_for(sizes, TASKS))
    taken_s = time.thread_time() - before_s
    most = max(map(sum, groups)) * len(groups) / sum(sizes)
    say(f"  {tables:,} dispatchers into {len(groups)} tasks: {taken_s:.4f} s, the largest {most:.2f} of the mean")
    return taken_s


def store_plan_s(root: Path, spans: int) -> float:
    """Return the CPU seconds in which an event store plans an idle window over so many spans."""
    with closing(ColumnarEventStore(root)) as store:
        of = [Span(table.table_id) for table in tables_of(spans)]
        for span in (*of, DDL_SPAN):
            store.register_span(span.span_id, span, BASE_TS)
            store.advance_resolved_ts(span.span_id, BASE_TS + 1_000)
        ids, tables = [span.span_id for span in of], [span.table_id for span in of]
        found = []
        for _ in range(3):
            before_s = time.thread_time()
            store.plan_window(WindowWish(ids, tables, BASE_TS, 1 << 29, ("shop.*",), tables))
            found.append(time.thread_time() - before_s)
    say(f"  the store's plan over {spans:,} spans: {min(found):.4f} s")
    return min(found)


def assignment(root: Path, servers: int, feeds: int) -> dict[str, float]:
    """Return what it costs servers to share feeds: rounds until all run, a look at them afterwards, and how long a dead server's wait."""
    root.mkdir()
    clock = SimulatedClock()
    meta = MetaDatabase(sqlite_url(root / "meta.db"), clock)
    for number in range(feeds):
        create_feed(meta, f"feed-{number:04}", tables_of(10, 100 + 10 * number))
    known = SourceFeeds([SourcePlace("", SOURCE)])

    def source_of(feed: FeedRecord) -> str | None:
        place = known.place_of(feed)
        return place.uri if place is not None else None

    # What is left of the servers can take all feeds.
    settings = SupervisorSettings(feeds_max=max(64, 2 * feeds // servers))
    fleet = [
        Supervisor(f"server-{n:02}", meta, LivingRuns(60.0), settings, clock, random.Random(n), source_of=source_of) for n in range(servers)
    ]
    rounds, began_s = 0, time.thread_time()
    while not all(feed.owner for feed in meta.list_feeds()) and rounds < _TAKEOVER_S_MAX:
        for supervisor in fleet:
            supervisor.scan()
        clock.advance(1)
        rounds += 1
    claim_s = time.thread_time() - began_s
    looks, statements = [], 0
    for _ in range(5):
        for supervisor in fleet:
            with StatementCounter() as counter:
                before_s = time.thread_time()
                supervisor.scan()
                looks.append(time.thread_time() - before_s)
            statements += counter.statements
        clock.advance(1)
    dead, living, waited_s = fleet[0].owner, fleet[1:], 0
    while any(feed.owner == dead for feed in meta.list_feeds()) and waited_s < _TAKEOVER_S_MAX:
        clock.advance(1)
        waited_s += 1
        for supervisor in living:
            supervisor.scan()
    owned = [feed.owner for feed in meta.list_feeds()]
    counts = [owned.count(supervisor.owner) for supervisor in living]
    found = {
        "rounds": rounds,
        "claim_s": claim_s,
        "look_s": min(looks),
        "look_statements": statements / len(looks),
        "takeover_s": waited_s,
        "feeds_most": max(counts),
        "feeds_least": min(counts),
    }
    say(f"  {servers} servers, {feeds:,} feeds: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items()))
    return found


def meta_costs(root: Path, seconds: float) -> dict[str, float]:
    """Return what a window of 10 tables costs a MariaDB as meta database, and the process that asks it; several feeds at once."""
    with ExitStack() as parts:
        url = parts.enter_context(mariadb(root))
        (server,) = [p for p in psutil.Process().children(recursive=True) if "mariadbd" in p.name()][:1]
        feeds = [Windows(root, url, f"meta-{n}", ACTIVE, ACTIVE) for n in range(META_FEEDS)]
        for feed in feeds:
            feed.window()
        with StatementCounter() as counter:
            feeds[0].window()
        done, until_s = [0] * len(feeds), time.perf_counter() + seconds

        def work(number: int) -> None:
            while time.perf_counter() < until_s:
                feeds[number].window()
                done[number] += 1

        threads = [threading.Thread(target=work, args=(n,)) for n in range(len(feeds))]
        mine, its, began_s = time.process_time(), sum(server.cpu_times()[:2]), time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall_s, windows = time.perf_counter() - began_s, sum(done)
        simulated_s = sum(feed.store.took_s + feed.jobs.took_s for feed in feeds) / (len(feeds) + 1 + windows + 1) * windows
        found = {
            "windows_per_s": windows / wall_s,
            "statements": counter.statements,
            "writes": counter.writes,
            "statements_per_s": windows * counter.statements / wall_s,
            "server_cpu_s": (sum(server.cpu_times()[:2]) - its) / windows,
            "client_cpu_s": (time.process_time() - mine - simulated_s) / windows,
        }
        feeds[0].meta.close()
    say("  MariaDB: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items()))
    return found
