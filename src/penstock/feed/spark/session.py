"""The Spark session of a server, of a test process or of a benchmark: one per process.

What executors are started with: ``executors.py``. Invariant: nothing that a user gives stands in a command line, and what Spark itself
writes down of its settings (its event log, its pages) hides every value whose name tells a secret. Runs in the driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from penstock.feed.spark.class_archive import archive_options
from penstock.feed.spark.executors import ARCHIVES_KEY, driver_python_path, executor_conf, executor_python, own_authentication
from penstock.feed.spark.java import ensure_java
from penstock.feed.spark.jvm_output import start_jvm
from penstock.feed.spark.launch_properties import launched_with
from penstock.model.errors import PenstockError

_END_WAIT_S = 60.0
LOG4J_FILE = Path(__file__).with_name("log4j2.properties")

# The JVM only hands out tasks, so it neither profits from its second compiler nor from collecting garbage at the side: on two cores both
# took more CPU time than the windows themselves. New objects get little room, all of which it touches: 60 MiB less for the same CPU time.
_JAVA_OPTIONS = "-XX:+UseParallelGC -Xmn48m -XX:TieredStopAtLevel=1"
_SECRET_NAMES = (
    "(?i)secret|passw(or)?d|passphrase|token|credential|signature|[.]sas[.]"
    "|(access|account|private|master|encryption|shared|sas|api)[-_.]?key"
)
"""Settings with such a name have their values hidden by Spark; its own list leaves out keys of storage accounts, among others."""
_ending: weakref.WeakSet[SparkContext] = weakref.WeakSet()
"""What was started here and ends with whoever closes it. The rest is somebody else's, or stays."""


@dataclass(frozen=True)
class SparkSettings:
    """Where Spark runs.

    Attributes:
        master: `local[*]`, `local-cluster[executors,cores,MiB]`, `spark://host:port`, `yarn` or `k8s://…`.
        driver_memory: the JVM heap of the driver, and of all executors with a local master.
        conf: further Spark settings, as they are.
        archive: the archive of this installation that executors unpack; empty where they have it at the same path.
    """

    master: str = "local[*]"
    driver_memory: str = "1g"
    conf: dict[str, str] = field(default_factory=dict)
    archive: str = ""


def keep_session(settings: SparkSettings) -> None:
    """Start Spark where none runs in this process, for as long as the process lives: servers use it and leave it, and so may others."""
    if SparkContext._active_spark_context is None:
        open_session(settings, stays=True)


def watch_session() -> Callable[[], bool]:
    """Return what tells whether the Spark that runs now still does: others may stop theirs, and start another."""
    context = SparkContext._active_spark_context
    return lambda: SparkContext._active_spark_context is context is not None


def open_session(settings: SparkSettings, app_name: str = "penstock", more_java_options: str = "", *, stays: bool = False) -> SparkSession:
    """Return the process's session, started if there is none.

    Where somebody else's Spark runs in this process, as in a notebook, it is used: the session is a new one of it, so that no setting of
    theirs is changed, and their Spark stays when it is closed, as one does that is started with ``stays``. ``more_java_options`` stand in
    the place of those that use the class archive.
    """
    active = SparkContext._active_spark_context
    if active is not None and active not in _ending:
        session = SparkSession.builder.getOrCreate().newSession()
        session.conf.set("spark.sql.session.timeZone", "UTC")
        return session
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = executor_python(settings.conf, settings.archive)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = driver_python_path()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1" if settings.master.startswith("local") else "")
    if not os.environ["SPARK_LOCAL_IP"]:
        del os.environ["SPARK_LOCAL_IP"]
    builder = SparkSession.builder.master(settings.master).appName(app_name)
    archived = more_java_options or archive_options()
    here = f"-Dlog4j2.configurationFile={LOG4J_FILE.as_uri()} {archived}".strip()
    java = f"{_JAVA_OPTIONS} --add-modules=jdk.incubator.vector"
    conf = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": f"{java} {here}",
        **executor_conf(settings.master, settings.conf, settings.archive, java, here),
        "spark.python.worker.reuse": "true",
        # A pattern of a filter overflows the stack on a long text: that is the end of its task, not of the JVM and all feeds in it.
        "spark.executor.killOnFatalError.depth": "0",
        # Feeds take turns: a feed with much to do does not make the others wait until it is done.
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        "spark.redaction.regex": _SECRET_NAMES,
    }
    # The one setting that both may give is joined already. Whatever is secret goes the way of what is asked for.
    asked = {key: value for key, value in settings.conf.items() if not (settings.archive and key == ARCHIVES_KEY)}
    if SparkContext._active_spark_context is None:
        asked |= own_authentication(settings.master, settings.conf)
    own = {key: value for key, value in conf.items() if key not in asked}
    # A JVM that runs already is told by itself; one that is started must not show what it is told.
    given = asked if SparkContext._gateway is None else {}
    told = own if given else own | asked
    for key, value in told.items():
        builder = builder.config(key, value)
    try:
        with launched_with(given):
            start_jvm({"spark.master": settings.master, "spark.app.name": app_name} | told)
            session = builder.getOrCreate()
    except Exception as error:
        text = str(error).strip().splitlines()
        raise PenstockError(
            "SPARK_UNAVAILABLE", f"Spark did not start with master {settings.master!r}: {text[0] if text else 'no message'}"
        ) from error
    if not stays:
        _ending.add(session.sparkContext)
    return session


def jvm_exit_code(session: SparkSession) -> int | None:
    """Return with what Spark's JVM ended, or None while it runs. One that another process started counts as running."""
    process = getattr(session.sparkContext._gateway, "proc", None)
    return None if process is None else process.poll()


def close_session(session: SparkSession) -> None:
    """Stop Spark where it was started here; of a JVM that has ended nothing is asked any more."""
    if jvm_exit_code(session) is not None or session.sparkContext not in _ending:
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
