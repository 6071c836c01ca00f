"""What the server's health asks of Spark: jobs that run, and jobs that wait because others have every core."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.feed.spark.load import SparkLoad, spark_load
from penstock.feed.spark.session import SparkSettings, open_session
from testing.servers.waiting import wait_until


@pytest.fixture
def session(jvm: None) -> SparkSession:
    return open_session(SparkSettings("local[2]"))


@contextmanager
def job(session: SparkSession, tasks: int, until: Path) -> Iterator[None]:
    """Run a job whose tasks last until a file is there."""
    file = str(until)

    def hold(_numbers: Iterator[int]) -> Iterator[int]:
        import os
        import threading

        never = threading.Event()
        for _ in range(1200):
            if os.path.exists(file):
                return iter(())
            never.wait(0.05)
        raise TimeoutError

    thread = threading.Thread(target=lambda: session.sparkContext.parallelize(range(tasks), tasks).mapPartitions(hold).count())
    thread.start()
    try:
        yield
    finally:
        until.touch()
        thread.join()


def test_jobs_that_run_and_jobs_that_wait(session: SparkSession, tmp_path: Path) -> None:
    assert spark_load(session) == SparkLoad(1, 0)
    cores = session.sparkContext.defaultParallelism
    end = tmp_path / "end"
    with job(session, cores, end):
        wait_until(lambda: (load := spark_load(session)).jobs == 1 and load.waiting == (), "it runs", 60)
        wait_until(lambda: f"0 of {cores} tasks done, {cores} run" in spark_load(session).running[0], "its tasks run", 60)
        with job(session, 1, end):
            wait_until(lambda: len(spark_load(session).waiting) == 1, "the other waits", 60)
            assert spark_load(session).jobs == 2
    wait_until(lambda: spark_load(session) == SparkLoad(1, 0), "both have ended", 60)
