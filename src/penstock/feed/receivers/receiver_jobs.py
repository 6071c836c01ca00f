"""Keeps receivers running: a Spark job of one task for each, started again with backoff when it ends.

Jobs of their own, so that the loss of one leaves the others alone; they have a pool of their own and are cancelled when the source is
ended. They begin with the first span that is wanted. Invariant: none is started while it and the others would take every core that there
is, because windows need one. A thread for each receiver, and one that looks for silent ones. Runs in the driver.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from penstock.feed.receivers.board import PartBoard
from penstock.feed.receivers.receiver import host_receiver
from penstock.feed.receivers.settings import ReceiverSettings
from penstock.feed.spark.jobs import RECEIVERS_POOL, Job, Jobs
from penstock.model.backoff import Backoff
from penstock.model.clock import Clock
from penstock.model.errors import PenstockError

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_CALM_S = 300.0
"""A receiver that ran for so long had no trouble at its start."""
_CANCEL_AGAIN_S = 0.2


class ReceiverJobs:
    """The jobs of one source's receivers. ``start`` and ``close`` are called by one thread."""

    def __init__(
        self,
        jobs: Jobs,
        board: PartBoard,
        name: str,
        task: Callable[[int, int], bytes],
        settings: ReceiverSettings,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        """``name`` is what people see; ``task`` gives what a slot's receiver is told in a run."""
        self._jobs = jobs
        self._board = board
        self._name = name
        self._task = task
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._backoff = Backoff(settings.backoff_s, settings.backoff_max_s)
        self._stop = threading.Event()
        self._run_name = f"{rng.getrandbits(32):08x}"
        self._threads = [
            threading.Thread(target=self._keep, args=(slot,), name=f"receiver-{slot}", daemon=True) for slot in range(settings.receivers)
        ]
        self._watcher = threading.Thread(target=self._watch, name="receiver-watch", daemon=True)

    def start(self) -> None:
        """Begin, as soon as anything is to be captured."""
        for thread in (self._watcher, *self._threads):
            thread.start()

    def close(self) -> None:
        """Let the receivers write down what they hold, as far as that takes a few seconds; then end them. May be called twice."""
        self._stop.set()
        self._board.stop()
        deadline_s = self._clock.monotonic_s() + self._settings.stop_s
        for slot, thread in enumerate(self._threads):
            while thread.is_alive():
                if not self._board.has_receiver(slot) or self._clock.monotonic_s() > deadline_s:
                    self._jobs.cancel(self._group(slot))
                thread.join(_CANCEL_AGAIN_S)
        if self._watcher.ident is not None:
            self._watcher.join()

    def _group(self, slot: int) -> str:
        return f"penstock receiver {self._run_name} {slot}"

    def _keep(self, slot: int) -> None:
        failures = 0
        while not self._stop.is_set():
            if not self._clock.wait(self._board.wanted, _LOOK_S):
                continue
            began_s = self._clock.monotonic_s()
            error = self._run(slot)
            self._board.end_run(slot, error)
            failures = failures + 1 if self._clock.monotonic_s() - began_s < _CALM_S else 1
            if not self._stop.is_set():
                shown = {"slot": slot, "failures": failures, "error": str(error) if error is not None else "it ended by itself"}
                log.warning("receiver will be started again", extra=shown)
                self._clock.wait(self._stop, self._backoff.pause_s(failures, self._rng))

    def _run(self, slot: int) -> PenstockError | None:
        """Run the job of a receiver until it ends; return why, None where it ended well."""
        run = self._board.begin_run(slot)
        try:
            check_cores(self._settings.cores, self._jobs.parallelism)
            shown = f"receiver {slot + 1} of {self._settings.receivers} of {self._name}"
            self._jobs.run(Job(self._group(slot), RECEIVERS_POOL, shown, host_receiver, [self._task(slot, run)]))
        except PenstockError as error:
            return error
        except Exception as error:
            log.exception("receiver raised", extra={"slot": slot})
            return PenstockError("WORKER_LOST", f"{type(error).__name__}: {error}")
        return None

    def _watch(self) -> None:
        while not self._clock.wait(self._stop, _LOOK_S):
            self._board.look()


def check_cores(receivers: int, cores: int) -> None:
    """Raise where receivers would take every core that Spark has been granted; that may pass."""
    if receivers >= cores:
        raise PenstockError(
            "WORKER_LOST",
            f"{receivers} receivers wait: Spark has {cores} cores now, and windows need one beside them",
            "Give Spark more cores (spark.master, spark.cores-max), or fewer receivers.",
        )
