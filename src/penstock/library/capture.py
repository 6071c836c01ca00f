"""A feed in this process, as ``penstock run`` has it, for programs and notebooks.

Invariants: no signal handler is put in the place of the caller's; a body that ends, in whatever way, ends the capture; what was started is
ended when the process is, where nobody did it before. The server is started and ended in threads of its own, so that an interrupt is heard
at once and Spark puts no handler in its place either. Spark stays when a capture ends: the next one begins at once, and frames that were
made with it live on. Runs in the server.
"""

from __future__ import annotations

import atexit
import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from penstock.library.client import Client
from penstock.library.one_feed import DEFAULT_NAME, divide, ensure_feed, is_caught_up
from penstock.library.places import given, given_uri
from penstock.library.progress import Progress
from penstock.library.server_client import ServerClient
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.settings.loader import load, merge

if TYPE_CHECKING:
    from penstock.server.process import ServerProcess
    from penstock.sink.callback.callbacks import Registered
    from penstock.sink.callback.changes import Callback

_LOOK_S, _JOIN_S, _FORGET_S, _GIVE_UP_S = 0.2, 0.1, 20.0, 60.0


def capture(
    source: str,
    tables: str | Sequence[str],
    sink: str | Path | Callback,
    *,
    name: str = DEFAULT_NAME,
    data_dir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Capture:
    """Carry tables of a database to a target while the body of ``with`` runs: first as they are, then every change.

    ``sink`` is the URI of a target, a path here, or a callable that gets ``Changes``. With the same ``data_dir`` and ``name`` the next
    capture goes on where this one stopped; without ``data_dir`` a URI has ``penstock-data`` here, and a callable begins anew each time.
    ``settings`` are those of ``penstock run FILE.toml``: the feed's, and the server's under ``server``.
    """
    return Capture(source, [tables] if isinstance(tables, str) else list(tables), sink, name, data_dir, settings)


class Capture:
    """A feed that runs in this process, in a ``with`` block or between ``start`` and ``stop``; iterating gives its progress as it moves."""

    def __init__(
        self,
        source: str,
        tables: list[str],
        sink: str | Path | Callback,
        name: str,
        data_dir: str | Path | None,
        settings: Mapping[str, Any] | None,
    ) -> None:
        self._given = {"source": source, "tables": tables, "name": name}
        self._settings = dict(settings or {})
        self._name = name
        self._sink = sink
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._parts = contextlib.ExitStack()
        self._stopping = threading.Event()
        self._process: ServerProcess | None = None
        self._registered: Registered | None = None
        self._server: ServerClient | None = None
        self._spark_runs: Callable[[], bool] = lambda: True
        self._temporary = False
        self._clock = SystemClock()

    def __enter__(self) -> Capture:
        return self.start()

    def start(self) -> Capture:
        """Begin, where ``with`` does not fit, as over several cells of a notebook; returns itself. ``stop`` ends it."""
        if self._process is not None:
            raise PenstockError("CONFIG_INVALID", f"capture {self._name} was started before", "Call penstock.capture again.")
        try:
            self._start()
        except BaseException:
            self._parts.close()
            raise
        atexit.register(self.stop)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def __iter__(self) -> Iterator[Progress]:
        last: Progress | None = None
        while not self._stopping.is_set():
            found = self.progress()
            moved = (found.state, found.checkpoint_ts, found.rows, found.uncovered)
            if last is None or moved != (last.state, last.checkpoint_ts, last.rows, last.uncovered):
                last = found
                yield found
            self._clock.wait(self._stopping, _LOOK_S)

    @property
    def name(self) -> str:
        """Return the feed's name."""
        return self._name

    @property
    def data_dir(self) -> Path:
        """Return where progress and the event store live; the Spark format ``penstock`` reads the tables by it."""
        return self._data_dir or Path("penstock-data")

    @property
    def url(self) -> str:
        """Return where the API and the page of this server answer; only to who has its token."""
        return self._running().url

    def client(self) -> Client:
        """Return a client of this server, which the caller closes."""
        process = self._running()
        return Client(process.url, token=process.token)

    def progress(self) -> Progress:
        """Return what is reached now; raise what made the feed fail."""
        return Progress.of(self._shown())

    def wait_until_caught_up(self, timeout: float | None = None) -> Progress:
        """Wait until everything that was committed before the call is delivered.

        Raises ``NOT_CAUGHT_UP`` when ``timeout`` seconds have passed. Tables that cannot be read are not waited for; ``uncovered`` has
        them.
        """
        until_ts = self._running().settled_ts()
        deadline_s = None if timeout is None else self._clock.monotonic_s() + timeout
        while True:
            feed = self._shown()
            if is_caught_up(feed, until_ts):
                return Progress.of(feed)
            if deadline_s is not None and self._clock.monotonic_s() >= deadline_s:
                raise PenstockError("NOT_CAUGHT_UP", f"feed {self._name} is {feed['state']}, and not there after {timeout:g} s")
            if self._clock.wait(self._stopping, _LOOK_S):
                raise PenstockError("CANCELLED", f"capture {self._name} was stopped")

    def stop(self) -> None:
        """End the capture: what is delivered stays, and what is under way comes with the next one. May be called twice, by any thread."""
        self._stopping.set()
        atexit.unregister(self.stop)
        self._parts.close()

    def _running(self) -> ServerProcess:
        if self._process is None or self._stopping.is_set():
            raise PenstockError("CANCELLED", f"capture {self._name} does not run", "Use it inside its `with` block.")
        return self._process

    def _shown(self) -> dict[str, Any]:
        process = self._running()
        assert self._server is not None
        process.check_spark()
        if not self._spark_runs():
            hint = "Capture again with a new session; with the same data_dir it goes on where it stopped."
            raise PenstockError("SPARK_LOST", "the Spark session of this process was stopped", hint)
        feed = self._server.show_feed(self._name)
        if feed["state"] == "failed" and feed["error"]:
            cause = self._registered.error if self._registered else None
            raise PenstockError(feed["error"]["code"], feed["error"]["message"], feed["error"]["hint"]) from cause
        return feed

    def _start(self) -> None:
        # Imported here: Spark and Arrow take their time, and executors import this package too.
        from penstock.config.server_tree import ServerConfig
        from penstock.config.tree import load_feed_config
        from penstock.feed.spark.session import SparkSettings, keep_session, watch_session
        from penstock.server.process import ServerProcess
        from penstock.server.start_checks import check_start

        told: dict[str, Any] = self._given | {"sink": self._target(), "source": given().resolve(str(self._given["source"]))}
        told["server"] = {"data-dir": str(self.data_dir)}
        feed_tree, server_tree = divide(merge(given().resolve_tree(self._settings), told))
        feed = load_feed_config(feed_tree)
        config = load(ServerConfig, server_tree, "server")
        # A callable is there, and no doctor of targets knows it.
        check_start(config, [] if self._registered else [feed])
        process = ServerProcess(config)
        spark = SparkSettings(config.spark.master, config.spark.driver_memory, config.spark.effective_conf, config.spark.archive)

        def start() -> None:
            keep_session(spark)
            process.start()

        self._parts.callback(_in_thread, "stop", process.stop)
        _in_thread("start", start, process.abandon)
        self._process, self._spark_runs = process, watch_session()
        self._server = self._parts.enter_context(ServerClient(process.url, token=process.token))
        ensure_feed(self._server, feed_tree, process.create_feed)
        if self._temporary:
            self._parts.callback(self._forget)

    def _target(self) -> dict[str, Any]:
        """Return the target's part of the configuration; a callable is made known under the feed's name."""
        if not callable(self._sink):
            return {"uri": given_uri(self._sink) if isinstance(self._sink, str | Path) else self._sink}
        from penstock.sink.callback.callbacks import registered

        if self._data_dir is None:
            self._temporary = True
            self._data_dir = Path(self._parts.enter_context(tempfile.TemporaryDirectory(prefix="penstock-", ignore_cleanup_errors=True)))
        self._registered = self._parts.enter_context(registered(self._name, self._sink))
        spool = self._data_dir / "spool"
        spool.mkdir(parents=True, exist_ok=True)
        for left in spool.iterdir():
            left.unlink(missing_ok=True)
        return {"uri": f"python:{self._name}", "spool": str(spool.absolute())}

    def _forget(self) -> None:
        """Remove a feed that nobody can go on with, so that its source keeps nothing for it; where that takes long, leave it."""
        assert self._server is not None
        deadline_s, never = self._clock.monotonic_s() + _FORGET_S, threading.Event()
        with contextlib.suppress(PenstockError):
            self._server.control(self._name, "remove", {"reason": "the capture has ended"})
            while self._server.show_feed(self._name) and self._clock.monotonic_s() < deadline_s:
                self._clock.wait(never, _JOIN_S)


def _in_thread(what: str, work: Callable[[], None], abandon: Callable[[], None] | None = None) -> None:
    """Do something in a thread of its own; an interrupt meanwhile lets it end as soon as it can, and is raised then."""
    failed: list[BaseException] = []

    def do() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised by the thread that waits
            failed.append(error)

    thread = threading.Thread(target=do, name=f"capture-{what}", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(_JOIN_S)
    except BaseException:
        if abandon is not None:
            abandon()
        thread.join(_GIVE_UP_S)
        raise
    if failed:
        raise failed[0]
