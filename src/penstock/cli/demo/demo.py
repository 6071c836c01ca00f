"""The verb ``demo``: the whole path on this machine, from a database under load to verified files.

Starts a database and its writer in processes of their own and a server in this one, creates a feed, shows its progress, drains, and
compares every row. Everything is real: the same parts that ``penstock server`` and ``penstock verify`` run. Invariants: Ctrl-C ends it at
any time with 130 and leaves neither a process nor a file; what others print goes to a log, which is named where something failed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.foreground import EXIT_INTERRUPTED, Foreground
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.cli.demo.figures import Figures
    from penstock.cli.demo.view import View
    from penstock.cli.demo.writer import Writer, Written
    from penstock.cli.server_client import ServerClient
    from penstock.server.process import ServerProcess
    from penstock.server.verify.verification import Verdict

FEED, LOG = "demo", "demo.log"
EMBEDDED = "embedded"
SOURCES = {EMBEDDED: "the embedded data server", "mysql": "MariaDB", "postgres": "PostgreSQL"}
_POLL_S = 0.25
_PHASE_S_MAX = 180.0
_VERIFY_S_MAX = 600.0
_FREE_BYTES_MIN = 512 << 20
_BEFORE_SHARE = 10
"""One row in so many is there before the feed."""


@click.command()
@click.option(
    "--source",
    type=click.Choice(list(SOURCES)),
    default=EMBEDDED,
    show_default=True,
    help="The database: the embedded one, or a MariaDB or a PostgreSQL that the demo starts for itself.",
)
@click.option("--rows", default=100_000, show_default=True, type=click.IntRange(1000), help="Row changes that the workload writes.")
@click.option("--seconds", default=15.0, show_default=True, type=click.FloatRange(1), help="Over how long it writes them.")
@click.option("--out", type=click.Path(path_type=Path), help="Where the files go; must not exist or be empty.  [default: a new folder]")
@click.option("--master", default="local[*]", show_default=True, help="Spark's master, e.g. local-cluster[2,1,1024].")
@click.option("--keep", is_flag=True, help="Keep the files of a new folder, and the server's data and log, when the demo ends.")
def demo(source: str, rows: int, seconds: float, out: Path | None, master: str, keep: bool) -> None:
    """Run the whole path on this machine and verify every row.

    A database takes a workload of inserts, updates, deletes and DDLs. A feed captures it into the event store and delivers it through
    Spark as CSV files. When the workload has ended, the files are replayed and compared with the database. Exits 0 only if every row is
    identical. Ctrl-C ends it with 130 and leaves nothing.

    \b
    Examples:
      penstock demo
      penstock demo --source mysql
      penstock demo --rows 1000000 --seconds 40 --out /tmp/penstock-demo
      penstock demo --master 'local-cluster[2,1,1024]'
    """  # noqa: D301
    check_machine(source, out)
    # Before signals are heard another way, so that Ctrl-C ends it at once.
    from penstock.cli.shown.first_run import prepare_first_run

    prepare_first_run()
    with folder(out, keep=keep) as (root, target):
        foreground = Foreground(leave=lambda code: _leave(code, None if keep else root))
        try:
            run_demo(source, rows, seconds, target, master, root, foreground)
        except click.exceptions.Exit:
            click.echo("stopped" if keep or out else "stopped; nothing is left of it", err=True)
            raise
        finally:
            if keep:
                click.echo(f"kept: {root}" if out is None else f"kept: {target}, and the server's data in {root}")
            if keep or out:
                click.echo(f"look at it: penstock storage ls {target.as_uri()}")


def check_machine(source: str, out: Path | None) -> None:
    """Raise what would stop the demo, before anything is started."""
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise PenstockError("SINK_OCCUPIED", f"--out: {out} is not an empty folder", "Choose another folder, or empty this one.")
    if source == "mysql" and importlib.util.find_spec("pymysql") is None:
        raise PenstockError("MISSING_DEPENDENCY", "the driver for MariaDB is not installed", "Run pip install 'penstock[mysql]'.")
    if source != EMBEDDED:
        from penstock.cli.demo.databases import check_programs

        check_programs(source)
    from penstock.feed.spark.java import ensure_java

    ensure_java()


@contextlib.contextmanager
def folder(out: Path | None, *, keep: bool) -> Iterator[tuple[Path, Path]]:
    """Make a folder for everything, and the one for the files; remove the first again. A log is kept beside where something fails."""
    root: Path | None = None
    try:
        try:
            root = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
            target = (out or root / "files").absolute()
            target.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(root).free
        except OSError as error:
            raise _no_room(f"{error.filename or tempfile.gettempdir()}: {error.strerror or error}") from None
        if free < _FREE_BYTES_MIN:
            raise _no_room(f"{root.parent}: {free >> 20:,} MiB are free, and the demo needs {_FREE_BYTES_MIN >> 20:,}")
        yield root, target
    except Exception as error:
        if root is not None and not isinstance(error, click.exceptions.Exit):
            _keep_log(root, keep=keep)
        raise
    finally:
        if root is not None and not keep:
            shutil.rmtree(root, ignore_errors=True)


def _no_room(why: str) -> PenstockError:
    return PenstockError("CONFIG_INVALID", why, "Name a folder that can be written, with room, in the variable TMPDIR, or with --out.")


def _keep_log(root: Path, *, keep: bool) -> None:
    """Say where the log is; beside the folder, where that goes."""
    log = root / LOG
    with contextlib.suppress(OSError):
        if log.stat().st_size:
            kept = log if keep else root.with_suffix(".log")
            if not keep:
                shutil.copyfile(log, kept)
            click.echo(f"log: {kept}", err=True)


def run_demo(source: str, rows: int, seconds: float, target: Path, master: str, root: Path, foreground: Foreground) -> None:
    """Run the demo; raises unless every row is identical."""
    from rich.console import Console

    from penstock.cli.demo.quiet import quiet
    from penstock.cli.demo.view import View

    stop = foreground.stop
    with contextlib.ExitStack() as parts:
        shown = parts.enter_context(quiet(root / LOG))
        parts.enter_context(java_files_in(root))
        view = parts.enter_context(View(Console(file=shown, highlight=False), master, stop))
        view.step(f"starting {SOURCES[source]}")
        writer, first = _open_database(source, rows, seconds, root, stop, parts)
        view.done(f"{first.server}: {first.before:,} rows in database shop")
        view.step(f"starting Spark ({master}), the log service, the event store and the API")
        process = _server(first.uri, root / "data", master)
        with foreground.running(process):
            view.done(f"server {process.url}")
            figures, verdict = _carry(process, view, writer, first, rows, target, stop)
        view.end_picture()
        view.show_end(figures, target)
        if verdict.identical:
            view.verdict(f"verified: {len(verdict.tables):,} tables, {verdict.rows:,} rows identical")
    verdict.check()


@contextlib.contextmanager
def java_files_in(root: Path) -> Iterator[None]:
    """Have a JVM that is started inside keep its temporary files in the demo's folder: it knows no TMPDIR, and killed it leaves them."""
    place = root / "java"
    place.mkdir()
    options = f'{os.environ.get("JAVA_TOOL_OPTIONS", "")} "-Djava.io.tmpdir={place}"'
    variables = {"JAVA_TOOL_OPTIONS": options, "SPARK_LOCAL_DIRS": str(place)}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _server(source: str, data_dir: Path, master: str) -> ServerProcess:
    # Imported here, because Spark and Arrow take their time and `--help` and bad options need neither.
    from penstock.config.server_tree import ServerConfig, SparkConfig
    from penstock.server.process import ServerProcess

    return ServerProcess(ServerConfig(source=source, data_dir=data_dir, http_port=0, spark=SparkConfig(master=master)))


def _open_database(
    source: str, rows: int, seconds: float, root: Path, stop: threading.Event, parts: contextlib.ExitStack
) -> tuple[Writer, Written]:
    from penstock.cli.demo.databases import STARTERS
    from penstock.cli.demo.writer import Writer

    try:
        uri = "" if source == EMBEDDED else parts.enter_context(STARTERS[source](root / "database", stop))
        writer = parts.enter_context(Writer(source, uri, rows, rows // _BEFORE_SHARE, max(1, round(rows / seconds))))
        first = writer.ready(stop)
    except PenstockError as error:
        if error.code != "CANCELLED":
            raise
        first = None
    if first is None:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)
    return writer, first


def _carry(
    process: ServerProcess, view: View, writer: Writer, first: Written, rows: int, target: Path, stop: threading.Event
) -> tuple[Figures, Verdict]:
    """Create the feed, and follow it until everything that the workload wrote is delivered and verified."""
    from penstock.cli.demo.figures import Figures
    from penstock.cli.server_client import ServerClient
    from penstock.library.one_feed import is_caught_up
    from penstock.model.clock import SystemClock

    with ServerClient(process.url, token=process.token) as client:
        figures = Figures(rows)
        view.step(f"creating feed {FEED}")
        feed = client.create_feed({"name": FEED, "tables": ["shop.*"], "sink": {"uri": target.as_uri()}, "flush-interval": "1s"})
        figures.create(SystemClock().monotonic_s(), first)
        view.done(f"feed {FEED}: {', '.join(sorted(t['name'] for t in feed['tables']))}")
        look = _Look(process, client, writer, figures, target.parent if target.name == "files" else target, stop)
        until_ts = process.settled_ts()
        look.until(lambda feed: is_caught_up(feed, until_ts), view, "snapshot: the rows that were there are read and delivered")
        writer.begin()
        look.until(lambda _: figures.written.ended, view, "live: the workload writes, the feed follows", bounded=False)
        until_ts = process.settled_ts()
        look.until(lambda feed: is_caught_up(feed, until_ts), view, "draining: the workload has ended, the last rows are on their way")
        return figures, _verified(process, client, view, figures, stop)


class _Look:
    """Looks at all stages, again and again."""

    def __init__(
        self, process: ServerProcess, client: ServerClient, writer: Writer, figures: Figures, data_dir: Path, stop: threading.Event
    ) -> None:
        from penstock.model.clock import SystemClock

        self._process, self._client, self._writer, self._figures = process, client, writer, figures
        self._data_dir, self._stop, self._clock = data_dir, stop, SystemClock()

    def until(self, done: Callable[[dict[str, Any]], bool], view: View, phase: str, *, bounded: bool = True) -> None:
        """Look until something is so; raises where the feed failed, where nothing can go on, or where it takes too long."""
        deadline_s = self._clock.monotonic_s() + _PHASE_S_MAX
        while True:
            feed = self._seen()
            view.show(self._figures, phase)
            if done(feed):
                return
            if bounded and self._clock.monotonic_s() > deadline_s:
                why = f": {self._figures.trouble}" if self._figures.trouble else ""
                raise PenstockError("FEED_FAILED", f"this took longer than {_PHASE_S_MAX:.0f} s: {phase}{why}", "See the log.")
            if self._clock.wait(self._stop, _POLL_S):
                raise click.exceptions.Exit(EXIT_INTERRUPTED)

    def _seen(self) -> dict[str, Any]:
        from penstock.model.timestamp import lag_seconds

        self._process.check_spark()
        written, feed = self._writer.written(), self._client.show_feed(FEED)
        if feed["state"] == "failed" and feed["error"]:
            raise PenstockError(feed["error"]["code"], feed["error"]["message"], feed["error"]["hint"])
        resolved_ts = feed["resolved_ts"]
        behind_s = max(0.0, lag_seconds(resolved_ts, self._clock)) if resolved_ts else None
        self._figures.observe(self._clock.monotonic_s(), written, feed, _size(self._data_dir / "data" / "store"), behind_s)
        return feed


def _verified(process: ServerProcess, client: ServerClient, view: View, figures: Figures, stop: threading.Event) -> Verdict:
    """Let the server compare, and show how far it is."""
    import msgspec

    from penstock.cli.server_client import ServerClient
    from penstock.model.clock import SystemClock
    from penstock.server.verify.verification import Verdict

    told: list[Verdict | PenstockError] = []
    ended = threading.Event()

    def ask() -> None:
        try:
            with ServerClient(process.url, _VERIFY_S_MAX, token=process.token) as asking:
                told.append(msgspec.convert(asking.verify_feed(FEED), Verdict))
        except PenstockError as error:
            told.append(error)
        finally:
            ended.set()

    threading.Thread(target=ask, name="demo-verify", daemon=True).start()
    clock, lines = SystemClock(), 0
    line = ""
    while not clock.wait(ended, _POLL_S):
        more = client.verify_progress(FEED, lines)
        lines, line = lines + len(more), more[-1] if more else line
        view.show(figures, f"verifying: {line or 'the files are replayed and compared with the database'}")
        if stop.is_set():
            raise click.exceptions.Exit(EXIT_INTERRUPTED)
    if not told:
        raise PenstockError("FEED_FAILED", "the comparison ended without an answer", "See the log.")
    if isinstance(told[0], PenstockError):
        raise told[0]
    view.show(figures, f"verified: {told[0].rows:,} rows identical; stopping" if told[0].identical else "verified: rows differ; stopping")
    return told[0]


def _size(directory: Path) -> int:
    """Return how many bytes the files in a folder have; those that go meanwhile do not count."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
    return total


def _leave(code: int, root: Path | None) -> None:
    """End at once, without files left; what was started is ended by then."""
    if root is not None:
        # Threads of this process still write; in a folder of another name they find nothing to write to.
        gone = root.with_suffix(".gone")
        with contextlib.suppress(OSError):
            root.rename(gone)
        for place in (gone, gone, root):
            shutil.rmtree(place, ignore_errors=True)
    if sys.__stdout__ is not None and sys.__stdout__.isatty():
        # The picture hides the cursor.
        with contextlib.suppress(OSError):
            os.write(sys.__stdout__.fileno(), b"\x1b[?25h\n")
    os._exit(code)
