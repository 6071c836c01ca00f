import pytest

from penstock.feed.run import query_error
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


def test_a_lost_worker_is_no_reason_to_stop():
    assert query_error("Python worker exited unexpectedly (crashed)").kind is ErrorKind.TRANSIENT
