"""Keeps one claimed feed running: start, watch, restart after transient errors, stop.

Invariants: one thread per feed drives its runs, one run at a time; a run is stopped before the next one starts and before the keeper
ends; after the lease is lost nothing is written about the feed. Pauses between restarts double up to a bound while there is no
progress between them; no number of restarts ends a feed. A feed that failed stays RETRYING until a run has moved its checkpoint or has
lasted for a while. An error of any other kind than TRANSIENT ends this feed, and only this one; where the server itself can run no feed
any more, nothing is said about the feed. Runs in the server.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Callable

from penstock.config.server_tree import SupervisorSettings
from penstock.meta.database import MetaDatabase
from penstock.meta.records import FeedRecord, ReachedState, RetryRecord
from penstock.model.backoff import Backoff
from penstock.model.clock import Clock
from penstock.model.errors import ErrorKind, PenstockError
from penstock.server.feeds.ports import FeedRun, FeedRunFactory, RunStatus
from penstock.server.feeds.turns import StartTurns
from penstock.settings.masking import mask_text

log = logging.getLogger(__name__)

_WATCH_INTERVAL_S = 0.2
_LOOKS_APART = 5
"""After so many looks at a run that followed a failure, the checkpoint is asked for."""
_SOUND_S = 10.0
"""A run that has lasted so long counts as sound, also where there is nothing to deliver."""
_START_S_MAX = 30.0
"""A run that is still starting by then no longer keeps others from it."""
_FINISHED = "FEED_FINISHED"
_ASKED = frozenset({"FEED_PAUSED", "FEED_ALTERED", _FINISHED})
"""How a run ends that was asked to: nothing is wrong."""
_CAUSE = (": ", "Caused by:")
_TRACEBACK = "Traceback (most recent call last):"


class FeedKeeper:
    """One feed under one epoch, from claim to release."""

    def __init__(
        self,
        feed: FeedRecord,
        epoch: int,
        meta: MetaDatabase,
        factory: FeedRunFactory,
        settings: SupervisorSettings,
        clock: Clock,
        jitter: random.Random,
        turns: StartTurns,
        able: Callable[[], bool] = lambda: True,
    ) -> None:
        self.feed = feed
        self.epoch = epoch
        self._meta = meta
        self._factory = factory
        self._settings = settings
        self._clock = clock
        self._jitter = jitter
        self._turns = turns
        self._able = able
        self._backoff = Backoff(settings.backoff_s, settings.backoff_max_s)
        self._again = threading.Event()
        self._last_code = ""
        self._at_once = False
        self._stop = threading.Event()
        self._fenced = threading.Event()
        self._run: FeedRun | None = None
        self._thread = threading.Thread(target=self._keep, name=f"feed-{feed.name}", daemon=True)

    def start(self) -> None:
        """Start the keeper's thread."""
        self._thread.start()

    def stop(self, *, at_once: bool = False) -> None:
        """Ask the keeper to stop its run; ``join`` waits for it. ``at_once`` gives a window under way no time to end."""
        self._at_once = self._at_once or at_once
        self._stop.set()
        self._again.set()

    def retry_now(self) -> None:
        """End a pause between two runs."""
        self._again.set()

    def fence(self) -> None:
        """Stop at once, because another owner has the feed or may have it: nothing more is written about it."""
        self._fenced.set()
        self.stop(at_once=True)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the keeper's thread; return whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def ended(self) -> bool:
        """Return whether the keeper's thread has ended."""
        return not self._thread.is_alive()

    @property
    def waits_for_meta(self) -> bool:
        """Return whether the last run failed because the meta database was away."""
        return self._last_code == "META_UNAVAILABLE"

    @property
    def stopping(self) -> bool:
        """Return whether the keeper was asked to stop."""
        return self._stop.is_set()

    @property
    def fenced(self) -> bool:
        """Return whether the lease is lost."""
        return self._fenced.is_set()

    def status(self) -> RunStatus | None:
        """Return the status of the current run, or None between runs."""
        run = self._run
        return run.status() if run is not None else None

    def _keep(self) -> None:
        failures, last_checkpoint_ts, finished = 0, -1, False
        while not self._stop.is_set():
            error = self._attempt(failures)
            finished = error is not None and error.code == _FINISHED
            if error is None or self._stop.is_set() or error.code in _ASKED:
                break
            if not self._able():
                return
            checkpoint_ts = self._checkpoint_ts()
            failures = failures + 1 if checkpoint_ts == last_checkpoint_ts else 1
            last_checkpoint_ts = checkpoint_ts
            pause_s = self._backoff.pause_s(failures, self._jitter)
            self._again.clear()
            self._last_code = error.code
            if not self._survives(error, failures, pause_s):
                return
            if not self._stop.is_set():
                self._clock.wait(self._again, pause_s)
        self._rest(finished)

    def _attempt(self, failures: int) -> PenstockError | None:
        """Run until the end; return why it ended, or None where it was asked to."""
        try:
            with contextlib.ExitStack() as parts:
                # Its target is asked first, which may hang: that keeps nobody else from starting.
                self.feed = self._factory.prepare(self.feed, self.epoch)
                run = self._run = self._factory.create(self.feed, self.epoch)
                parts.callback(lambda: run.stop(at_once=self._at_once))
                with self._turns.turn(self._stop) as mine:
                    if not mine:
                        return None
                    run.start()
                    self._await_start(run)
                return self._watch(run, failures)
        except PenstockError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a run holds foreign code, which may raise anything; it must end this feed and no other.
            return foreign_error(error)
        finally:
            self._run = None

    def _await_start(self, run: FeedRun) -> None:
        """Keep the turn until the run has started, has ended, or takes too long."""
        deadline_s = self._clock.monotonic_s() + _START_S_MAX
        while run.status().starting and not self._stop.is_set() and self._clock.monotonic_s() < deadline_s:
            if run.wait(_WATCH_INTERVAL_S):
                return

    def _watch(self, run: FeedRun, failures: int) -> PenstockError | None:
        began_s, began_ts, looks = self._clock.monotonic_s(), self._checkpoint_ts() if failures else -1, 0
        sound = failures == 0 and self._reach(ReachedState.RUNNING)
        while not self._stop.is_set():
            if run.wait(_WATCH_INTERVAL_S):
                return run.error() or PenstockError("CANCELLED", "the run ended without being asked")
            looks += 1
            if not sound and looks % _LOOKS_APART == 0:
                lasted = self._clock.monotonic_s() - began_s >= _SOUND_S and not run.status().starting
                sound = (lasted or self._checkpoint_ts() > began_ts >= 0) and self._reach(ReachedState.RUNNING)
        return None

    def _survives(self, error: PenstockError, failures: int, pause_s: float) -> bool:
        """Record an error; return whether the feed is started again."""
        if error.kind is ErrorKind.FENCED:
            log.info("feed lost to another owner", extra={"feed": self.feed.name, "epoch": self.epoch})
            self._fenced.set()
            return False
        again, text, now_ms = error.kind is ErrorKind.TRANSIENT, mask_text(error.detail), self._clock.now_ms()
        fields = {"feed": self.feed.name, "code": error.code, "error": text.partition("\n")[0], "failures": failures}
        if again:
            log.warning("feed is tried again", extra=fields | {"pause_s": round(pause_s, 1)})
        else:
            log.error("feed failed; `penstock feed resume` tries it again", extra=fields)
        retry = RetryRecord(now_ms, now_ms + round(pause_s * 1000), failures) if again else None
        try:
            self._meta.record_error(self.feed.name, self.epoch, error.code, text, retry)
        except PenstockError as lost:
            if lost.kind is ErrorKind.FENCED:
                self._fenced.set()
                return False
            log.debug("error of feed not recorded", extra={"feed": self.feed.name, "code": lost.code})
        return again

    def _reach(self, state: ReachedState) -> bool:
        """Record a state; return whether it is. A meta database that does not answer is no reason to stop a run, a lost lease is."""
        if self._fenced.is_set():
            return False
        try:
            before = self._meta.get_feed(self.feed.name).reached_state
            return self._meta.lives.reach(self.feed.name, self.epoch, before, state)
        except PenstockError as error:
            if error.kind is not ErrorKind.TRANSIENT:
                self.fence()
            log.info("state of feed not recorded", extra={"feed": self.feed.name, "state": state.value, "code": error.code})
            return False

    def _rest(self, finished: bool) -> None:
        """Record that nothing runs any more, as paused or otherwise: what is asked of the feed decides."""
        if self._fenced.is_set():
            return
        try:
            self._meta.lives.rest(self.feed.name, self.epoch, finished=finished)
        except PenstockError as error:
            if error.kind is not ErrorKind.TRANSIENT:
                self.fence()
            log.info("end of feed not recorded", extra={"feed": self.feed.name, "code": error.code})

    def _checkpoint_ts(self) -> int:
        try:
            return self._meta.get_feed(self.feed.name).checkpoint_ts
        except PenstockError:
            return -1


def foreign_error(error: Exception) -> PenstockError:
    """Return the Penstock error inside a foreign one; where there is none, its name and root cause, without its stack."""
    text = f"{type(error).__name__}: {error}"
    found = PenstockError.from_text(text)
    if found.code != "FEED_FAILED":
        return found
    # Java writes the thrown error on a line of its own that begins with a colon, and each cause below it.
    causes = [line.strip().removeprefix("Caused by:").removeprefix(":").strip() for line in text.splitlines() if line.startswith(_CAUSE)]
    return PenstockError("FEED_FAILED", " ".join([text.splitlines()[0].strip(), *(_raised_in_python(text) or causes[-1:])]))


def _raised_in_python(text: str) -> list[str]:
    """Return the line with which the last Python traceback in a text ends, if there is one."""
    below = text.rpartition(_TRACEBACK)[2].splitlines() if _TRACEBACK in text else []
    return [line.strip() for line in below if line and not line[0].isspace()][:1]
