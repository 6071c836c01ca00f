"""The class archive: what Spark's JVM loads, prepared once, so that sessions start in a third of the time.

A JVM that starts Spark and its first job reads and checks some fifteen thousand classes; from an archive (Java's class data sharing) it
maps them. The archive belongs to one Java, one Spark and one environment, and lies in the environment. Invariants: without an archive,
or with one that does not fit, everything works, only slower; a half-written archive is never under the final name. ``python -m
penstock.feed.spark.class_archive`` makes it, at set-up. Runs there, and in the driver.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pyspark

_END_S_MAX = 300.0
_QUIET = "-Xlog:disable -Xlog:all=error:stderr"
"""An archive that does not fit is passed over without a word."""


def archive_path() -> Path | None:
    """Return where the archive of this Java and this Spark is or would be; None where no Java is found."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else Path(shutil.which("java") or "")
    if not java.is_file():
        return None
    release = java.resolve().parent.parent / "release"
    text = release.read_text() if release.is_file() else ""
    name = hashlib.sha256(f"{java.resolve()}\0{text}\0{pyspark.__version__}".encode()).hexdigest()[:16]
    return Path(sys.prefix, "var", "penstock", f"spark-{name}.jsa")


def archive_options() -> str:
    """Return the JVM's options that use the archive; none where there is no archive."""
    path = archive_path()
    return f"-Xshare:auto -XX:SharedArchiveFile={quoted(path)} {_QUIET}" if path is not None and path.is_file() else ""


def quoted(path: Path) -> str:
    """Return a path as Spark's options of the JVM take it: a folder's name may have a space."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"' if re.search(r"[\s\"'\\]", text) else text


def make_archive() -> Path | None:
    """Start Spark, run an empty job, and archive what was loaded; return the archive, or None where it could not be made."""
    path = archive_path()
    if path is None or path.is_file():
        return path
    from pyspark import SparkContext

    from penstock.feed.spark.jobs import SparkJobs
    from penstock.feed.spark.session import SparkSettings, open_session
    from penstock.feed.spark.warming import warm

    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, path.name)
        session = open_session(
            SparkSettings("local[2]"), "penstock class archive", more_java_options=f"-XX:ArchiveClassesAtExit={quoted(made)} {_QUIET}"
        )
        warm(SparkJobs(session))
        gateway = SparkContext._gateway
        session.stop()
        if gateway is not None:
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(_END_S_MAX)
        if not made.is_file():
            return None
        made.rename(path)
    return path


if __name__ == "__main__":
    sys.exit(0 if make_archive() is not None else 1)
