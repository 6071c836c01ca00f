"""The demo's writer: a process of its own that fills the demo's database and writes to it, and the demo's hold on it.

``python -m penstock.cli.demo.writer KIND URI ROWS BEFORE RATE`` prints JSON lines: the first once the tables are there with ``BEFORE``
rows, more while the workload runs, and one with ``ended`` after it. A line on its standard input lets the workload begin; the end of its
input ends it, so that nothing is left where the demo was killed. The embedded data server lives in it too. Runs in the demo.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import msgspec

from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError
from penstock.source.dataserver.workload import WorkloadReport

EMBEDDED = "embedded"
_TELL_S = 0.2
_TRANSACTIONS_PER_S = 10
_END_S_MAX = 10.0


class Written(msgspec.Struct, frozen=True):
    """What the writer told last."""

    uri: str = ""
    server: str = ""
    before: int = 0
    """Rows that were there before the workload."""
    report: WorkloadReport = WorkloadReport()
    last_ddl: str = ""
    ended: bool = False


class Writer:
    """The process, from the demo's side."""

    def __init__(self, kind: str, uri: str, rows: int, before: int, rate: int) -> None:
        command = [sys.executable, "-m", "penstock.cli.demo.writer", kind, uri, *map(str, (rows, before, rate))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self._changed = threading.Condition()
        self._told: Written | None = None
        self._reader = threading.Thread(target=self._read, name="demo-writer", daemon=True)
        self._reader.start()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # It keeps nothing that anybody needs.
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._stdin.close()
        self._reader.join(_END_S_MAX)

    @property
    def _stdin(self) -> Any:
        return self._process.stdin

    def ready(self, stop: threading.Event) -> Written | None:
        """Wait until the tables are there; None where that was not waited for."""
        while not stop.is_set():
            with self._changed:
                self._changed.wait(_TELL_S)
                if self._told is not None:
                    return self._told
            self._check()
        return None

    def begin(self) -> None:
        """Let the workload begin."""
        self._stdin.write("begin\n")
        self._stdin.flush()

    def written(self) -> Written:
        """Return what it told last; raises where it ended before its work did."""
        self._check()
        with self._changed:
            return self._told or Written()

    def _check(self) -> None:
        if self._process.poll() is not None:
            raise PenstockError(
                "UPSTREAM_UNREACHABLE", f"the demo's writer ended with {self._process.returncode} before its work was done", "See its log."
            )

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                with self._changed:
                    self._told = msgspec.convert(json.loads(line), Written)
                    self._changed.notify_all()


class _Orders:
    """What the demo says: begin, and end."""

    def __init__(self) -> None:
        self.begin, self.end = threading.Event(), threading.Event()
        threading.Thread(target=self._listen, name="orders", daemon=True).start()

    def _listen(self) -> None:
        for _ in sys.stdin:
            self.begin.set()
        self.end.set()
        self.begin.set()


def _tell(written: Written) -> None:
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(msgspec.to_builtins(written)), flush=True)


@contextlib.contextmanager
def _embedded(rows: int, before: int, rate: int) -> Iterator[tuple[Any, Any, Written]]:
    """Yield a workload on a data server of this process: what runs it, what tells of it, what to say first."""
    from penstock.source.dataserver.service.server import DataServer, DataServerSettings
    from penstock.source.dataserver.shop import DDLS
    from penstock.source.dataserver.workload import Workload, WorkloadSettings

    server = DataServer(DataServerSettings())
    server.start()
    try:
        settings = WorkloadSettings(rate=rate, rows=rows, txn_rows=max(10, rate // _TRANSACTIONS_PER_S))
        workload = Workload(server.engine, settings)
        workload.setup()
        workload.go_on_with(WorkloadSettings(rows=before, update_share=0.0, delete_share=0.0, rollback_share=0.0, ddls=False))
        workload.run()
        workload.go_on_with(settings)

        def told() -> tuple[WorkloadReport, str]:
            report = workload.report
            return report, DDLS[min(report.ddls, len(DDLS)) - 1].format(db="shop") if report.ddls else ""

        yield workload.run, told, Written(server.uri, "data server, 2 stores", before, workload.report)
        workload.stop()
    finally:
        server.stop()


@contextlib.contextmanager
def _sql(kind: str, uri: str, rows: int, before: int, rate: int, stop: threading.Event) -> Iterator[tuple[Any, Any, Written]]:
    """Yield the same for a database at a URI."""
    from penstock.cli.demo.sql_workload import DIALECTS, SqlWorkload
    from penstock.source.dataserver.workload import WorkloadSettings

    with contextlib.closing(DIALECTS[kind](uri)) as dialect:
        workload = SqlWorkload(dialect, WorkloadSettings(rate=rate, rows=rows), stop)
        workload.setup(before)
        yield workload.run, lambda: (workload.report, workload.last_ddl), Written(uri, dialect.name, before, workload.report)


def write(kind: str, uri: str, rows: int, before: int, rate: int) -> None:
    """Be the process."""
    orders, clock = _Orders(), SystemClock()
    made = _embedded(rows, before, rate) if kind == EMBEDDED else _sql(kind, uri, rows, before, rate, orders.end)
    with made as (run, told, first):
        _tell(first)
        orders.begin.wait()
        failed: list[BaseException] = []

        def work() -> None:
            try:
                run()
            except BaseException as error:  # noqa: BLE001 - raised below
                failed.append(error)

        working = threading.Thread(target=work, name="workload", daemon=True)
        if not orders.end.is_set():
            working.start()
        while working.is_alive() and not clock.wait(orders.end, _TELL_S):
            report, ddl = told()
            _tell(msgspec.structs.replace(first, report=report, last_ddl=ddl))
        if failed:
            raise failed[0]
        report, ddl = told()
        _tell(msgspec.structs.replace(first, report=report, last_ddl=ddl, ended=True))
        orders.end.wait()


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
