"""Starts Spark's JVM so that what it writes to standard error becomes records of this process's log.

The JVM writes lines of its own: what Java says of itself, what Spark logs, and what Python workers print. Invariants: each line is one
record, in the order in which they were written; what Java and Spark say at every start is told at debug only. Where standard error is
not what it was when the JVM was started, as in a demo or a notebook, its lines go to the file that it would have written to.
Runs in a process that starts Spark.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
from collections.abc import Mapping

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

log = logging.getLogger("penstock.spark")

_RECORD = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (?P<level>[A-Z]+) (?P<by>\S+): (?P<text>.*)")
_LEVELS = {"FATAL": logging.CRITICAL, "ERROR": logging.ERROR, "WARN": logging.WARNING, "INFO": logging.INFO, "DEBUG": logging.DEBUG}
_AT_EVERY_START = (
    # Spark asks for the module by itself, and Java has no option to be silent about it.
    "WARNING: Using incubator modules: ",
    "Setting default log level to ",
    "To adjust logging level use ",
    "Picked up JAVA_TOOL_OPTIONS: ",
    "Picked up _JAVA_OPTIONS: ",
)


def start_jvm(conf: Mapping[str, str]) -> None:
    """Start the JVM of this process's Spark, with these settings, unless one runs."""
    if SparkContext._gateway is not None:
        return
    asked = SparkConf(loadDefaults=False)
    for key, value in conf.items():
        asked.set(key, value)
    end, other_end = os.pipe()
    threading.Thread(target=_tell, args=(end, os.dup(2)), name="spark-jvm-output", daemon=True).start()
    try:
        gateway = launch_gateway(asked, {"stderr": other_end})  # type: ignore[no-untyped-call]
    finally:
        os.close(other_end)
    SparkContext._ensure_initialized(gateway=gateway)


def _tell(end: int, stderr: int) -> None:
    level = logging.WARNING
    with open(end, encoding="utf-8", errors="backslashreplace") as lines:
        for line in lines:
            # Nobody may read either of them any more; the JVM does not wait for that.
            with contextlib.suppress(OSError):
                if sys.stderr is sys.__stderr__ and os.path.sameopenfile(stderr, 2):
                    level = tell_line(line.rstrip("\r\n"), level)
                else:
                    os.write(stderr, line.encode())
    os.close(stderr)


def tell_line(line: str, level: int = logging.WARNING) -> int:
    """Log one line; return the level of what may follow it, as a stack trace does."""
    if line.startswith(_AT_EVERY_START):
        log.debug("%s", line)
        return logging.WARNING
    record = _RECORD.fullmatch(line)
    if record is None:
        if line.strip():
            log.log(level, "%s", line)
        return level
    level = _LEVELS.get(record["level"], logging.WARNING)
    log.log(level, "%s", record["text"], extra={"by": record["by"]})
    return level
