import pytest

from penstock.feed.window.run import query_error
from penstock.model.errors import ErrorKind


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[STREAM_FAILED] Query terminated: Job aborted: [SINK_UNWRITABLE] /x: No space left\nTraceback", "SINK_UNWRITABLE"),
        ("Job aborted due to stage failure: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)", "WORKER_LOST"),
        ("Task 0 failed: ExecutorLostFailure (executor 1 exited caused by one of the running tasks)", "WORKER_LOST"),
        ("Caused by: java.io.EOFException\n at java.base/java.io.DataInputStream.readInt", "WORKER_LOST"),
        # An error of ours wins over the words around it.
        ("[FENCED] feed f: epoch 3 has ended\nCaused by: java.io.EOFException", "FENCED"),
        ("java.lang.NullPointerException", "FEED_FAILED"),
    ],
)
def test_what_a_failed_query_says(text, code):
    assert query_error(text).code == code


@pytest.mark.parametrize(
    "text",
    [
        "Python worker exited unexpectedly (crashed)",
        "org.apache.spark.SparkException: Python worker failed to connect back.",
        "java.lang.NullPointerException",
        "some text of Spark that nobody has seen yet",
    ],
)
def test_what_is_none_of_our_errors_passes(text):
    """A machine that is busy, or a cluster that loses a node, must not park a feed for good."""
    assert query_error(text).kind is ErrorKind.TRANSIENT


def test_a_cause_without_a_message_is_seen():
    """A planner that was killed: Spark's text holds the messages of the causes, and an EOFException has none."""
    text = "[STREAM_FAILED] Query [id = 1] terminated with exception:  SQLSTATE: XXKST (no cause message)"
    found = query_error(text, ["java.io.EOFException"])
    assert found.code == "WORKER_LOST"
    assert found.detail.endswith("java.io.EOFException")
    assert query_error(text, ["org.apache.spark.SparkException: x", "java.lang.Error: [FENCED] feed f: epoch 3 has ended"]).code == "FENCED"
    assert query_error(text, ["java.lang.NullPointerException\n at x"]).detail.endswith("java.lang.NullPointerException")
