"""Tasks that travel beside a plan: sealed, or with the plan where they are too many."""

from __future__ import annotations

import pytest
from pyspark import TaskContext

from penstock.feed.filters.task_seal import TASKS_PROPERTY, GivenTasks, TaskSeal
from penstock.model.errors import InvariantError

TASKS = [b"a password", b"", bytes(range(256))]


def test_what_is_opened_is_what_was_sealed_and_nothing_of_it_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    seal = TaskSeal.made()
    assert seal is not None
    text = seal.sealed(TASKS)
    assert text is not None
    assert "password" not in text + repr(seal)
    # Making one makes it the process's own, so that is what must be undone.
    monkeypatch.setattr(TaskContext, "_taskContext", None)
    context = TaskContext()
    context._localProperties = {TASKS_PROPERTY: text}
    assert list(seal.opened()) == TASKS
    context._localProperties = {TASKS_PROPERTY: ""}
    with pytest.raises(InvariantError, match="without its tasks"):
        seal.opened()


def test_tasks_that_are_too_many_for_a_property_come_with_the_plan() -> None:
    seal = TaskSeal.made()
    assert seal is not None
    assert seal.sealed([b"x" * (1 << 20)]) is None
    assert GivenTasks(tuple(TASKS)).opened() == tuple(TASKS)
