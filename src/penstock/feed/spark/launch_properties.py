"""Settings of Spark that a user gives, on their way to the JVM: by a file for its owner alone, not by its command line.

A command line stands in /proc for every user of the machine, and settings hold keys of object stores. The file is gone when the JVM has
started. Neither the JVM nor the Python processes that it starts get the secrets of this process's environment. Invariant: every key and
value arrives as it was given, whatever characters it has. Runs in the driver.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from penstock.access.secret_variables import withheld

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_SPECIAL = frozenset(" \t\n\r\f=:#!\\")


@contextmanager
def launched_with(conf: Mapping[str, str]) -> Iterator[None]:
    """Let a JVM that is started inside have these settings, besides those of its installation."""
    with withheld():
        if not conf:
            yield
            return
        with _properties_file(conf):
            yield


@contextmanager
def _properties_file(conf: Mapping[str, str]) -> Iterator[None]:
    given = os.environ.get(_ARGUMENTS)
    handle, name = tempfile.mkstemp(prefix="penstock-spark-", suffix=".properties")
    try:
        with open(handle, "w", encoding="ascii") as file:
            file.write(properties_text(conf))
        os.environ[_ARGUMENTS] = f"--load-spark-defaults --properties-file {shlex.quote(name)} {given or 'pyspark-shell'}"
        yield
    finally:
        if given is None:
            os.environ.pop(_ARGUMENTS, None)
        else:
            os.environ[_ARGUMENTS] = given
        Path(name).unlink(missing_ok=True)


def properties_text(conf: Mapping[str, str]) -> str:
    """Return settings as Java's properties."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in conf.items())


def _escaped(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(c) if 0x20 < c < 0x7F and chr(c) not in _SPECIAL else f"\\u{c:04x}" for c in codes)
