"""What a task answers, and what is made of Spark's words."""

import pickle
import traceback

import pytest
from pyspark import TaskContext

from penstock.feed.spark.jobs import Job, _attempts_max, attempt, sorted_out, spark_error
from penstock.model.errors import ErrorKind, InvariantError, PenstockError
from testing.twins.local_jobs import LocalJobs

ABORTED = (
    "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: "
)


def by_name(task: bytes) -> bytes:
    """Fail as the task says; otherwise answer it backwards."""
    kind, _, detail = task.decode().partition(" ")
    if kind == "OTHER":
        raise KeyError(detail)
    if kind == "INTERNAL":
        raise InvariantError(detail)
    if detail:
        raise PenstockError(kind, detail, "a hint of its own")
    return task[::-1]


def job(*tasks: bytes) -> Job:
    return Job("g", "p", "test", by_name, tasks)


def test_answers_stand_in_the_order_of_the_tasks():
    assert LocalJobs().run(job(b"ab", b"cd", b"ef")) == [b"ba", b"dc", b"fe"]


def test_an_error_of_ours_crosses_whole():
    answers = pickle.loads(pickle.dumps(list(attempt(by_name, 4, [b"SINK_UNWRITABLE /x is full", b"INTERNAL broken"]))))
    assert [(type(e), e.code, e.detail) for e in answers] == [
        (PenstockError, "SINK_UNWRITABLE", "/x is full"),
        (InvariantError, "INTERNAL", "broken"),
    ]
    assert answers[0].hint == "a hint of its own"


def test_an_error_of_others_passes_and_says_what_it_was():
    with pytest.raises(PenstockError, match=r"^\[FEED_FAILED\] KeyError: 'x'$") as raised:
        LocalJobs().run(job(b"OTHER x"))
    assert raised.value.kind is ErrorKind.TRANSIENT


def test_the_error_that_decides_most_wins():
    answers = [b"done", PenstockError("SINK_UNAVAILABLE", "a"), PenstockError("FENCED", "b"), PenstockError("CUT_CONFLICT", "c")]
    with pytest.raises(PenstockError, match=r"\[FENCED\] b"):
        sorted_out(answers)
    with pytest.raises(PenstockError, match=r"\[SINK_UNAVAILABLE\] a"):
        sorted_out(answers[:2])


def test_a_cancelled_group_does_nothing():
    jobs = LocalJobs()
    jobs.cancel("g")
    with pytest.raises(PenstockError, match="CANCELLED"):
        jobs.run(job(b"a"))
    assert jobs.done == []


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (f"{ABORTED}org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)", "WORKER_LOST"),
        (f"{ABORTED}ExecutorLostFailure (executor 1 exited caused by one of the running tasks)", "WORKER_LOST"),
        ("x\nCaused by: java.io.EOFException\n at java.base/java.io.DataInputStream.readInt", "WORKER_LOST"),
        # An error of ours wins over the words around it.
        (f"{ABORTED}penstock.model.errors.PenstockError: [SINK_UNAVAILABLE] /x\nCaused by: java.io.EOFException", "SINK_UNAVAILABLE"),
        ("Job 7 cancelled part of cancelled job group penstock feed f epoch 1", "CANCELLED"),
        (f"{ABORTED}org.apache.spark.SparkException: Python worker failed to connect back.", "FEED_FAILED"),
        ("java.lang.NullPointerException", "FEED_FAILED"),
        ("some text of Spark that nobody has seen yet", "FEED_FAILED"),
        ("", "FEED_FAILED"),
    ],
)
def test_what_spark_says(text, code):
    """A machine that is busy, or a cluster that loses a node, must not park a feed for good."""
    found = spark_error(text)
    assert found.code == code
    assert found.kind is ErrorKind.TRANSIENT


def test_sparks_reason_is_shown_and_not_the_call():
    found = spark_error(f"{ABORTED}Python worker failed to connect back.\n\tat org.apache.spark.X")
    assert found.detail.startswith("org.apache.spark.SparkException: Job aborted due to stage failure")
    assert found.detail.endswith("failed to connect back.")


@pytest.mark.parametrize(
    ("master", "attempts"), [("local[2]", 1), ("local[*, 3]", 3), ("local", 1), ("local-cluster[2,1,1024]", 4), ("spark://h:7077", 4)]
)
def test_how_often_spark_attempts_a_task(master, attempts):
    assert _attempts_max(master, "4") == attempts


@pytest.mark.parametrize("kind", ["SINK_UNAVAILABLE", "OTHER"])
def test_what_an_attempt_raises_for_spark_to_write_down_tells_no_secret(kind: str) -> None:
    """Not the last attempt, so it is raised; a cause would be written down with it."""
    task = f"{kind} s3://b/p?secret-access-key=Hidd3n".encode()
    with pytest.raises(PenstockError) as raised:
        list(attempt_of_many(task))
    shown = "".join(traceback.format_exception(raised.value))
    assert "Hidd3n" not in shown
    assert "s3://b/p?secret-access-key=***" in shown


def attempt_of_many(task: bytes):
    """Attempt a task outside Spark, which counts as the last attempt, as if it were not."""
    context = TaskContext()
    TaskContext._setTaskContext(context)
    context._attemptNumber = 0
    try:
        yield from attempt(by_name, 4, [task])
    finally:
        TaskContext._setTaskContext(None)
