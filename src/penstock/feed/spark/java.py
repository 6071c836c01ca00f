"""Java, which Spark runs on: found before Spark is started, because Spark's own message names no package and no version.

JAVA_HOME wins where it fits; else the path, else where Linux distributions put Java. Invariant: afterwards JAVA_HOME names the Java that is
used, or the error says what was looked at and what to install. Runs in the driver.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from penstock.model.errors import PenstockError

MAJOR_MIN = 17
USUAL_PLACES = Path("/usr/lib/jvm")
_ANSWER_S = 30.0
_VERSION = re.compile(r'(?:version |JAVA_VERSION=)"(?:1\.)?(\d+)')


def ensure_java(places: Path = USUAL_PLACES) -> None:
    """Set JAVA_HOME to a Java that fits; raise JAVA_MISSING where there is none. One that was started elsewhere is not looked at."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ["JAVA_HOME"] = str(find_java(os.environ, places))


def find_java(environment: Mapping[str, str], places: Path = USUAL_PLACES) -> Path:
    """Return the home of the first Java that fits."""
    seen = []
    for origin, home in _candidates(environment, places):
        major = _major(home)
        if major is not None and major >= MAJOR_MIN:
            return home
        seen.append(f"{origin} names {home}, {'where no Java is' if major is None else f'which is Java {major}'}")
    raise PenstockError("JAVA_MISSING", f"Spark needs Java {MAJOR_MIN} or newer; {'; '.join(seen) or 'none is on the path'}")


def _candidates(environment: Mapping[str, str], places: Path) -> Iterator[tuple[str, Path]]:
    if environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield "PATH", Path(on_path).resolve().parent.parent
    for home in sorted(places.glob("*")):
        yield str(places), home


def _major(home: Path) -> int | None:
    java, release = home / "bin" / "java", home / "release"
    if not os.access(java, os.X_OK):
        return None
    try:
        text = release.read_text(encoding="utf-8", errors="replace") if release.is_file() else ""
        if "JAVA_VERSION=" not in text:
            done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=False)
            text = done.stdout + done.stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(text)
    return None if found is None else int(found[1])
