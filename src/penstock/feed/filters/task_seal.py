"""What the tasks of a query are told, beside its plan: sealed in a property of the job, so that one plan serves many windows.

Spark writes properties of jobs to its log of events, and tasks hold secrets. The key is this process's own, new with each start, and is a
part of the plan, as tasks are that come with it. Invariant: what is opened is what was sealed, whole. Runs in the driver; opening, on
executors.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from pyspark import TaskContext

from penstock.model.errors import InvariantError

TASKS_PROPERTY = "penstock.filter.secret.tasks"
_SEALED_CHARS_MAX = 1 << 20
"""Each task gets the property whole; tasks of more are told with a plan of their own."""


class GivenTasks(msgspec.Struct, frozen=True):
    """Tasks that are part of the plan."""

    tasks: tuple[bytes, ...]

    def opened(self) -> Sequence[bytes]:
        """Return what each task is told."""
        return self.tasks


class TaskSeal(msgspec.Struct, frozen=True):
    """Seals tasks, and opens those of the job that it is used in."""

    key: bytes

    def __repr__(self) -> str:
        return "TaskSeal()"

    @classmethod
    def made(cls) -> TaskSeal | None:
        """Return a new one; None where the package is not installed, and every query has a plan of its own."""
        try:
            from cryptography.fernet import Fernet
        except ImportError:
            return None
        return cls(Fernet.generate_key())

    def sealed(self, tasks: Sequence[bytes]) -> str | None:
        """Return tasks as a text; None where they are too many."""
        from cryptography.fernet import Fernet

        text = Fernet(self.key).encrypt(msgspec.msgpack.encode(list(tasks))).decode()
        return text if len(text) <= _SEALED_CHARS_MAX else None

    def opened(self) -> Sequence[bytes]:
        """Return what each task of this job is told."""
        from cryptography.fernet import Fernet

        context = TaskContext.get()
        text = context.getLocalProperty(TASKS_PROPERTY) if context is not None else None
        if not text:
            raise InvariantError("a query came without its tasks")
        return msgspec.msgpack.decode(Fernet(self.key).decrypt(text.encode()), type=list[bytes])
