"""How a process of Penstock writes its logs: one line each, the stable message first, then its fields as ``key=value``; or as JSON.

Invariants: credentials are masked, whatever a component passed; a name with a line's end in it makes no line of its own, and no terminal
obeys what stands in one. Runs in every process that the command line starts.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import sys
from typing import TextIO

from penstock.cli.shown.line import say, visible
from penstock.settings.masking import mask_text

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
LEVELS, LOG_FORMATS = ("debug", "info", "warning", "error"), ("text", "json")
_NOISY = ("py4j", "httpx", "httpcore", "asyncio", "numba")


class FieldFormatter(logging.Formatter):
    """Writes the fields that came with a record after its message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is the standard library's
        """Return the line without a traceback."""
        fields = " ".join(f"{key}={value}" for key, value in vars(record).items() if key not in _STANDARD)
        line = super().formatMessage(record)
        return (f"{line} {fields}" if fields else line).replace("\n", "\\n")

    def format(self, record: logging.LogRecord) -> str:
        """Return the whole text, masked."""
        return visible(mask_text(super().format(record)))


class JsonFormatter(logging.Formatter):
    """Writes a record as one object: when, how grave, who, what, and its fields beside them."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, masked."""
        fields = {key: _plain(value) for key, value in vars(record).items() if key not in _STANDARD}
        at = dt.datetime.fromtimestamp(record.created, tz=dt.UTC).isoformat(timespec="milliseconds")
        # A field of the same name does not hide what each line has.
        line = fields | {"time": at, "level": record.levelname.lower(), "logger": record.name, "message": mask_text(record.getMessage())}
        if record.exc_info:
            line["exception"] = mask_text(self.formatException(record.exc_info))
        return json.dumps(line)


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float) or value is None else mask_text(str(value))


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what stderr is when a record comes: whoever replaces it for a while may close what was there before."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        self.stream = sys.stderr
        super().emit(record)


def tell(text: str) -> None:
    """Say on stderr how far something is: a line as it stands, or a record where the log is JSON."""
    if any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger().handlers):
        logging.getLogger("penstock.cli").info("%s", text.strip())
    else:
        say(text, err=True)


def without_gateway_tracebacks(record: logging.LogRecord) -> bool:
    """Return whether a record is written: Spark's gateway logs a traceback through the root logger for each call without an answer.

    The caller gets the error as well, and whoever watches the JVM says that it ended.
    """
    return record.name != "root" or f"{os.sep}py4j{os.sep}" not in record.pathname


def configure_logging(level: int, log_format: str = "text") -> None:
    """Send logs to stderr; libraries that log every call stay at warnings."""
    handler = StderrHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else FieldFormatter())
    if level > logging.DEBUG:
        handler.addFilter(without_gateway_tracebacks)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
