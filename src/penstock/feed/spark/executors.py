"""Executors: what their processes are started with, on the driver's machine or on others.

Where all executors are on this machine they use the driver's own interpreter, code, class archive and log configuration. On other machines
none of its paths means anything: there the interpreter and the code come with an archive (``archive``, made by ``penstock package``), which
Spark unpacks in each executor's directory, or the operator names an interpreter that is there (``spark.pyspark.python``); they log as the
cluster's own configuration says. Without either, executors must have this installation at the same path. Runs in the driver.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import penstock

ARCHIVE_NAME = "penstock"
"""Under which name the archive is unpacked beside an executor."""
_PYTHON_KEY = "spark.pyspark.python"
_AUTHENTICATE_KEY = "spark.authenticate"
ARCHIVES_KEY = "spark.archives"

# For the Python workers. Batches of a few MiB come and go all the time: memory that goes back to the system each time costs a page fault
# for every 4 KiB when it is needed again, which is no small part of a feed's work on a virtual machine.
_WORKER_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    # Every window starts threads, and each of them would keep what it used in an arena of its own: workers grew with every window.
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
    "OPENBLAS_NUM_THREADS": "1",
    "POLARS_MAX_THREADS": "1",
}


def is_one_machine(master: str) -> bool:
    """Return whether a master's executors are all on the driver's machine: a local one, or a cluster that is reached by loopback only."""
    if master.startswith("local"):
        return True
    if not master.startswith("spark://"):
        return False
    hosts = [urlsplit(f"spark://{part}").hostname or "" for part in master.removeprefix("spark://").split(",")]
    return all(is_loopback_host(host) for host in hosts)


def executor_python(conf: Mapping[str, str], archive: str) -> str:
    """Return the interpreter that executors run."""
    return conf.get(_PYTHON_KEY) or (f"./{ARCHIVE_NAME}/bin/python" if archive else sys.executable)


def driver_python_path() -> str:
    """Return the driver's search path, with the directory in which this package lies."""
    package_parent = str(Path(penstock.__file__).resolve().parent.parent)
    return os.pathsep.join(dict.fromkeys([package_parent, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]))


def executor_conf(master: str, conf: Mapping[str, str], archive: str, java_options: str, local_java_options: str) -> dict[str, str]:
    """Return Spark's settings for executors.

    ``java_options`` fit every machine; ``local_java_options`` name files of this one. ``conf`` is what the operator gives.
    """
    found = {f"spark.executorEnv.{name}": value for name, value in _WORKER_ENVIRONMENT.items()}
    found["spark.python.daemon.module"] = "penstock.feed.spark.worker_daemon"
    if is_one_machine(master):
        java_options = f"{java_options} {local_java_options}".strip()
    found["spark.executor.extraJavaOptions"] = java_options
    if archive:
        found[ARCHIVES_KEY] = ",".join(filter(None, [conf.get(ARCHIVES_KEY), f"{archive}#{ARCHIVE_NAME}"]))
    elif _PYTHON_KEY not in conf:
        found["spark.executorEnv.PYTHONPATH"] = driver_python_path()
    return found


def own_authentication(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return settings by which Spark's own processes on this machine know each other, where the operator gives none.

    Its ports are open to every user of the machine, and who registers there as an executor is told settings and tasks. A cluster of the
    operator's has a secret of its own.
    """
    if not master.startswith("local") or any(key.startswith(_AUTHENTICATE_KEY) for key in conf):
        return {}
    # With a local master Spark makes the secret itself, for there is nobody to be told.
    secret = {f"{_AUTHENTICATE_KEY}.secret": secrets.token_urlsafe(32)} if master.startswith("local-cluster") else {}
    return {_AUTHENTICATE_KEY: "true", **secret}


def is_loopback_host(host: str) -> bool:
    """Return whether a host is this machine by its name."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
