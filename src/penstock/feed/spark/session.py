"""The Spark session of a server, of a test process or of a benchmark: one per process.

Executors must run the driver's interpreter and be able to import the package; both hold for local masters and for a loopback
cluster, and are set here. Runs in the driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

import penstock
from penstock.feed.formats.table_reader import register_penstock
from penstock.feed.spark.class_archive import archive_options
from penstock.feed.spark.launch_properties import launched_with
from penstock.model.errors import PenstockError

_END_WAIT_S = 60.0
LOG4J_FILE = Path(__file__).with_name("log4j2.properties")

# The JVM only hands out tasks, so it neither profits from its second compiler nor from collecting garbage at the side: on two cores both
# took more CPU time than the windows themselves.
_JAVA_OPTIONS = "-XX:+UseParallelGC -XX:TieredStopAtLevel=1"

# For the Python workers. Batches of a few MiB come and go all the time: memory that goes back to the system each time costs a page fault
# for every 4 KiB when it is needed again, which is no small part of a feed's work on a virtual machine.
_WORKER_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "OPENBLAS_NUM_THREADS": "1",
    "POLARS_MAX_THREADS": "1",
}


@dataclass(frozen=True)
class SparkSettings:
    """Where Spark runs.

    Attributes:
        master: `local[*]`, `local-cluster[executors,cores,MiB]` or `spark://host:port`.
        driver_memory: the JVM heap of the driver, and of all executors with a local master.
        conf: further Spark settings, as they are.
    """

    master: str = "local[*]"
    driver_memory: str = "1g"
    conf: dict[str, str] = field(default_factory=dict)


def open_session(settings: SparkSettings, app_name: str = "penstock", more_java_options: str = "") -> SparkSession:
    """Return the process's session, started if there is none; the format ``penstock`` is known to it.

    ``more_java_options`` stand in the place of those that use the class archive.
    """
    package_parent = str(Path(penstock.__file__).resolve().parent.parent)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    python_path = os.pathsep.join(dict.fromkeys([package_parent, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]))
    os.environ["PYTHONPATH"] = python_path
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1" if settings.master.startswith("local") else "")
    if not os.environ["SPARK_LOCAL_IP"]:
        del os.environ["SPARK_LOCAL_IP"]
    builder = SparkSession.builder.master(settings.master).appName(app_name)
    archived = more_java_options or archive_options()
    java = f"{_JAVA_OPTIONS} -Dlog4j2.configurationFile=file:{LOG4J_FILE} --add-modules=jdk.incubator.vector {archived}".strip()
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": java,
        "spark.executor.extraJavaOptions": java,
        "spark.executorEnv.PYTHONPATH": python_path,
        **{f"spark.executorEnv.{name}": value for name, value in _WORKER_ENVIRONMENT.items()},
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "penstock.feed.spark.worker_daemon",
        # Feeds take turns: a feed with much to do does not make the others wait until it is done.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
    }
    own = {key: value for key, value in conf.items() if key not in settings.conf}
    # A JVM that runs already is told by itself; one that is started must not show what it is told.
    given = settings.conf if SparkContext._active_spark_context is None else {}
    for key, value in (own if given else own | settings.conf).items():
        builder = builder.config(key, value)
    try:
        with launched_with(given):
            session = builder.getOrCreate()
        register_penstock(session)
    except Exception as error:
        text = str(error).strip().splitlines()
        raise PenstockError(
            "SPARK_UNAVAILABLE", f"Spark did not start with master {settings.master!r}: {text[0] if text else 'no message'}"
        ) from error
    return session


def jvm_exit_code(session: SparkSession) -> int | None:
    """Return with what Spark's JVM ended, or None while it runs. One that another process started counts as running."""
    process = getattr(session.sparkContext._gateway, "proc", None)
    return None if process is None else process.poll()


def close_session(session: SparkSession) -> None:
    """Stop Spark; of a JVM that has ended nothing is asked any more."""
    if jvm_exit_code(session) is not None:
        return
    try:
        session.stop()
    except Exception:
        if jvm_has_ended(session):
            return
        raise


def jvm_has_ended(session: SparkSession) -> bool:
    """Return whether Spark's JVM has ended, or is about to: who cannot reach it learns that before the system has noted its end."""
    process = getattr(session.sparkContext._gateway, "proc", None)
    try:
        return process is not None and process.wait(_END_WAIT_S) is not None
    except subprocess.TimeoutExpired:
        return False
