"""Threads under a seeded scheduler: the same seed gives the same interleaving, and time passes only when everybody waits.

Every task is a thread, but only one runs at a time: at each lock, wait and notification the scheduler may hand the baton to another
one, chosen by the seed. ``Interleaving.modules`` puts its primitives in the place of ``threading`` in the modules under test, so their code
runs as it stands. If all tasks wait for each other, that is reported as a deadlock, with what each of them waits for. Runs in tests.
"""

from __future__ import annotations

import random
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

REAL_WAIT_S_MAX = 200.0
STEPS_MAX = 3_000_000
JUMP_S_MAX = 5.0


class Abandoned(BaseException):
    """The run is over; the task ends."""


class SimulationError(AssertionError):
    """The run cannot go on: a deadlock, an endless loop, or an exception in a task."""


class Task:
    """One thread. ``waits_for`` tells what blocks it; a deadline lets time wake it."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.baton = threading.Lock()
        self.baton.acquire()
        self.waits_for = ""
        self.deadline_s: float | None = None
        self.timed_out = False
        self.finished = False
        self.ended = threading.Event()
        self.thread: SimulatedThread | None = None


class Interleaving:
    """The scheduler, its clock, and the primitives that it hands out."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        # Some runs change tasks at nearly every step, others let a task run far ahead of the rest.
        self._switch_probability = self._rng.choice([0.02, 0.1, 0.3, 0.7])
        self._jump_probability = self._rng.choice([0.0, 0.001, 0.01])
        self._tasks: list[Task] = []
        self._current: Task | None = None
        self._over = False
        self._done = threading.Event()
        self._failure: BaseException | None = None
        self.now_s = 0.0
        self.steps = 0
        self.trace = 0
        """A checksum of every hand-over: equal for equal interleavings."""
        self.threading = Primitives(self)

    def run(self, main: Callable[[], None]) -> None:
        """Run a function as the first task; returns when it returns, raises what it or any task raised."""
        first = self.spawn("main", main)
        self._current = first
        first.baton.release()
        in_time = self._done.wait(REAL_WAIT_S_MAX)
        self._over = True
        for task in self._tasks:
            if not task.finished and in_time:
                task.baton.release()
                task.ended.wait(REAL_WAIT_S_MAX)
        if not in_time:
            raise SimulationError("the simulation hangs outside its scheduler")
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def modules(self, *modules: ModuleType) -> Iterator[None]:
        """Let modules use this scheduler's primitives instead of ``threading``."""
        before = [vars(module)["threading"] for module in modules]
        for module in modules:
            vars(module)["threading"] = self.threading
        try:
            yield
        finally:
            for module, original in zip(modules, before, strict=True):
                vars(module)["threading"] = original

    # -- the clock, as components see it

    def now_ms(self) -> int:
        """Return simulated wall-clock milliseconds."""
        return 1_790_000_000_000 + int(self.now_s * 1000)

    def monotonic_s(self) -> float:
        """Return simulated seconds."""
        return self.now_s

    def wait(self, event: Any, timeout_s: float) -> bool:
        """Wait for an event of this scheduler."""
        return bool(event.wait(timeout_s))

    def pause(self, seconds: float) -> None:
        """Let simulated time pass for the running task."""
        self.block("a pause", seconds)

    # -- scheduling

    @property
    def over(self) -> bool:
        """Return whether tasks only unwind any more."""
        return self._over

    def spawn(self, name: str, target: Callable[[], None]) -> Task:
        """Make a task; it runs when the scheduler chooses it."""
        task = Task(name, len(self._tasks))
        self._tasks.append(task)
        threading.Thread(target=self._carry, args=(task, target), name=f"sim-{name}", daemon=True).start()
        return task

    @property
    def current(self) -> Task:
        """Return the task that runs."""
        assert self._current is not None
        return self._current

    def point(self) -> None:
        """Let another task go on instead, perhaps."""
        if self._over:
            raise Abandoned
        self.steps += 1
        if self.steps > STEPS_MAX:
            self._fail(SimulationError(f"no end after {STEPS_MAX} steps: {self.describe()}"))
        if self._rng.random() < self._switch_probability:
            self._hand_over(self.current)

    def block(self, waits_for: str, timeout_s: float | None = None) -> bool:
        """Block the running task until ``unblock`` or the timeout; return False on a timeout."""
        if self._over:
            raise Abandoned
        task = self.current
        task.waits_for = waits_for
        task.timed_out = False
        task.deadline_s = None if timeout_s is None else self.now_s + max(0.0, timeout_s)
        self._hand_over(task)
        return not task.timed_out

    def unblock(self, task: Task) -> None:
        """Let a blocked task go on when it is chosen."""
        task.waits_for = ""
        task.deadline_s = None

    def describe(self) -> str:
        """Return what every task waits for."""
        return "; ".join(f"{t.name}: {t.waits_for or 'runnable'}" for t in self._tasks if not t.finished)

    def _hand_over(self, task: Task) -> None:
        chosen = self._choose()
        if chosen is None:
            self._fail(SimulationError(f"deadlock: {self.describe()}"))
        elif chosen is not task:
            self._resume(chosen)
            task.baton.acquire()
            if self._over:
                raise Abandoned

    def _choose(self) -> Task | None:
        ready = [t for t in self._tasks if not t.finished and not t.waits_for]
        if not ready or (self._jump_probability and self._rng.random() < self._jump_probability):
            sleeping = [t for t in self._tasks if not t.finished and t.waits_for and t.deadline_s is not None]
            task = min(sleeping, key=lambda t: (t.deadline_s or 0.0, t.number), default=None)
            # Who could go on is never kept waiting for long, or every timeout would pass some day.
            if task is not None and (not ready or (task.deadline_s or 0.0) - self.now_s < JUMP_S_MAX):
                self.now_s = max(self.now_s, task.deadline_s or 0.0)
                task.timed_out = True
                self.unblock(task)
                ready = [*ready, task]
        return self._rng.choice(ready) if ready else None

    def _resume(self, task: Task) -> None:
        self._current = task
        self.trace = zlib.crc32(b"%d %d" % (task.number, self.steps), self.trace)
        task.baton.release()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._over = True
        self._done.set()
        raise Abandoned

    def _carry(self, task: Task, target: Callable[[], None]) -> None:
        task.baton.acquire()
        try:
            if not self._over:
                target()
        except Abandoned:
            pass
        except BaseException as error:  # noqa: BLE001 - whatever a task raises is the outcome of the run
            self._failure = self._failure or error
            self._over = True
        finally:
            task.finished = True
            if self._over or task.number == 0:
                self._over = True
                self._done.set()
            else:
                chosen = self._choose()
                if chosen is None:
                    self._failure = self._failure or SimulationError(f"deadlock after {task.name} ended: {self.describe()}")
                    self._over = True
                    self._done.set()
                else:
                    self._resume(chosen)
            task.ended.set()


class Primitives:
    """What the modules under test see as ``threading``."""

    def __init__(self, scheduler: Interleaving) -> None:
        self._scheduler = scheduler

    def Lock(self) -> SimulatedLock:  # noqa: N802 - the name of the standard library
        """Return a lock."""
        return SimulatedLock(self._scheduler, reentrant=False)

    def RLock(self) -> SimulatedLock:  # noqa: N802
        """Return a lock that its owner may take again."""
        return SimulatedLock(self._scheduler, reentrant=True)

    def Condition(self, lock: SimulatedLock | None = None) -> SimulatedCondition:  # noqa: N802
        """Return a condition."""
        return SimulatedCondition(self._scheduler, lock or self.RLock())

    def Event(self) -> SimulatedEvent:  # noqa: N802
        """Return an event."""
        return SimulatedEvent(self._scheduler)

    def Thread(self, target: Callable[..., None], args: tuple[Any, ...] = (), name: str = "thread", daemon: bool = True) -> SimulatedThread:  # noqa: N802
        """Return a thread."""
        return SimulatedThread(self._scheduler, name, lambda: target(*args))

    def current_thread(self) -> Any:
        """Return the thread that runs; the first task has none."""
        return self._scheduler.current.thread


class SimulatedLock:
    """A lock; whether its owner may take it again is fixed when it is made."""

    def __init__(self, scheduler: Interleaving, reentrant: bool) -> None:
        self._scheduler = scheduler
        self._reentrant = reentrant
        self.owner: Task | None = None
        self.depth = 0
        self._waiting: list[Task] = []

    def acquire(self) -> bool:
        """Take the lock."""
        scheduler = self._scheduler
        scheduler.point()
        task = scheduler.current
        while self.owner is not None and self.owner is not task:
            self._waiting.append(task)
            scheduler.block(f"a lock of {self.owner.name}")
        if self.owner is task and not self._reentrant:
            raise SimulationError(f"{task.name} takes a lock twice")
        self.owner = task
        self.depth += 1
        return True

    def release(self) -> None:
        """Give the lock back."""
        if self._scheduler.over:
            return
        assert self.owner is self._scheduler.current
        self.depth -= 1
        if self.depth == 0:
            self.owner = None
            for task in self._waiting:
                self._scheduler.unblock(task)
            self._waiting.clear()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimulatedCondition:
    """A condition."""

    def __init__(self, scheduler: Interleaving, lock: SimulatedLock) -> None:
        self._scheduler = scheduler
        self._lock = lock
        self._waiting: list[Task] = []

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification."""
        lock, scheduler = self._lock, self._scheduler
        task = scheduler.current
        assert lock.owner is task
        depth = lock.depth
        lock.depth = 1
        lock.release()
        self._waiting.append(task)
        notified = scheduler.block("a condition", timeout)
        if task in self._waiting:
            self._waiting.remove(task)
        lock.acquire()
        lock.depth = depth
        return notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until something holds."""
        deadline_s = None if timeout is None else self._scheduler.now_s + timeout
        while not (result := predicate()):
            left_s = None if deadline_s is None else deadline_s - self._scheduler.now_s
            if left_s is not None and left_s <= 0:
                break
            self.wait(left_s)
        return result

    def notify_all(self) -> None:
        """Wake all who wait."""
        for task in self._waiting:
            self._scheduler.unblock(task)
        self._waiting.clear()

    def notify(self, n: int = 1) -> None:
        """Wake some who wait."""
        for task in self._waiting[:n]:
            self._scheduler.unblock(task)
        del self._waiting[:n]


class SimulatedEvent:
    """An event."""

    def __init__(self, scheduler: Interleaving) -> None:
        self._scheduler = scheduler
        self._set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._set

    def set(self) -> None:
        """Set it and wake all who wait."""
        self._set = True
        for task in self._waiting:
            self._scheduler.unblock(task)
        self._waiting.clear()

    def clear(self) -> None:
        """Unset it."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set."""
        self._scheduler.point()
        if not self._set:
            task = self._scheduler.current
            self._waiting.append(task)
            self._scheduler.block("an event", timeout)
            if task in self._waiting:
                self._waiting.remove(task)
        return self._set


class SimulatedThread:
    """A thread that the scheduler runs."""

    def __init__(self, scheduler: Interleaving, name: str, target: Callable[[], None]) -> None:
        self.name = name
        self._scheduler = scheduler
        self._target = target
        self._ended = SimulatedEvent(scheduler)
        self._started = False

    def start(self) -> None:
        """Begin."""
        self._started = True
        task = self._scheduler.spawn(self.name, self._run)
        task.thread = self
        self._scheduler.point()

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return self._started and not self._ended.is_set()

    def _run(self) -> None:
        try:
            self._target()
        finally:
            self._ended.set()
