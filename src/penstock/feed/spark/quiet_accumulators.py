"""Spark's receiver of accumulators, quiet: a JVM that ends breaks its connection, and that is said once, by whoever watches the JVM.

Otherwise the library prints a traceback, whatever the process does about it. Runs in the driver.
"""

from __future__ import annotations

import logging
import socketserver
import sys

from pyspark import accumulators

log = logging.getLogger(__name__)


def quiet_accumulators() -> None:
    """Let errors of the receiver go to our log, in one line."""
    for kind in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
        setattr(kind, socketserver.BaseServer.handle_error.__name__, _note)


def _note(_server: object, _request: object, _address: object) -> None:
    error = sys.exc_info()[1]
    level = logging.DEBUG if isinstance(error, EOFError | ConnectionError) else logging.WARNING
    log.log(level, "spark's accumulators are not received", extra={"error": type(error).__name__})
