"""A span's consumer that keeps what a puller gives it. Runs in tests."""

from __future__ import annotations

import threading

from penstock.model.batch import BatchKind
from penstock.model.errors import PenstockError
from penstock.puller.logged.span_step import SpanStep
from penstock.puller.span_pipeline import Finish

WAIT_S = 60.0


class SpanReceiver:
    """Keeps rows, resolved ts and errors. What it takes is persisted at once, or when the gate is opened. Thread safe."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.gate_open = True
        self.waiting: list[Finish] = []
        self.sides: list[tuple[int, BatchKind, int]] = []
        """Ts, side and value of each row."""
        self.resolved: list[int] = []
        self.errors: list[str] = []
        self.refuse: PenstockError | None = None

    @property
    def rows(self) -> list[tuple[int, int]]:
        """Return ts and value of each row."""
        return [(ts, value) for ts, _, value in self.sides]

    @property
    def resolved_ts(self) -> int:
        """Return the last resolved ts."""
        return self.resolved[-1] if self.resolved else 0

    def consume(self, step: SpanStep, finish: Finish) -> bool:
        """Keep the rows of a step, whose tables have one column."""
        if self.refuse is not None:
            raise self.refuse
        with self.changed:
            for change in step.changes:
                columns = (change.records.column(0).to_pylist(), change.records.column(3).to_pylist())
                self.sides += [(ts, change.header.kind, value) for ts, value in zip(*columns, strict=True)]
            self.changed.notify_all()
            if not self.gate_open:
                self.waiting.append(finish)
                return True
        finish()
        return True

    def open_gate(self) -> None:
        """Persist what waits, twice each, which may happen."""
        with self.changed:
            self.gate_open, waiting, self.waiting = True, self.waiting, []
        for finish in waiting:
            finish()
            finish()

    def advance(self, ts: int) -> None:
        """Keep a resolved ts."""
        with self.changed:
            self.resolved.append(ts)
            self.changed.notify_all()

    def failed(self, error: PenstockError) -> None:
        """Keep the code of an error."""
        with self.changed:
            self.errors.append(error.code)
            self.changed.notify_all()

    def wait(self, ts: int) -> None:
        """Wait for a resolved ts."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.resolved_ts >= ts, WAIT_S)

    def wait_rows(self, count: int) -> None:
        """Wait for so many rows."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.sides) >= count, WAIT_S)
