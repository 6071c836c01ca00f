from __future__ import annotations

from penstock.server.feeds.keeper import foreign_error

JAVA = """An error occurred while calling o71.start.
: org.apache.spark.SparkException: could not start
\tat org.apache.spark.X.y(X.scala:1)
Caused by: java.lang.ClassNotFoundException: a.b.C
\tat java.base/Y.z(Y.java:2)
"""


def test_root_cause_of_a_foreign_error_without_its_stack() -> None:
    found = foreign_error(RuntimeError(JAVA))
    assert found.code == "FEED_FAILED"
    assert found.detail == "RuntimeError: An error occurred while calling o71.start. java.lang.ClassNotFoundException: a.b.C"
    assert foreign_error(RuntimeError(JAVA + "Caused by: [SINK_UNWRITABLE] no space")).code == "SINK_UNWRITABLE"
    assert foreign_error(KeyError()).detail == "KeyError:"
    python = 'no instance: Traceback (most recent call last):\n  File "x.py", line 1\n    x\nImportError: no y\n\n\tat a.B.c(D.java:1)'
    found = foreign_error(RuntimeError(python))
    assert found.detail == "RuntimeError: no instance: Traceback (most recent call last): ImportError: no y"
