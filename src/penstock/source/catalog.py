"""The catalog of upstreams: from a URI to a connected ``Upstream``, and to what the source's doctor finds.

A source adds its scheme here. An unknown scheme or a malformed URI is ``CONFIG_INVALID`` and names the field; an upstream that does not
answer is ``UPSTREAM_UNREACHABLE`` at once, not at its first use. Runs wherever an upstream is opened: log service, server, executors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from penstock.model.errors import PenstockError
from penstock.model.finding import Finding
from penstock.model.table_pattern import TablePatterns
from penstock.settings.loader import did_you_mean
from penstock.source.contract import Upstream
from penstock.source.dataserver.client import ClientSettings, DataServerUpstream
from penstock.source.survey import SurveyedTable, surveyed

CONNECT_TIMEOUT_S = 3.0
ONE_LOG_SCHEMES = frozenset({"mariadb", "mysql", "postgres", "postgresql"})
"""Sources with one log, known before anything is opened."""


def open_upstream(uri: str) -> Upstream:
    """Return a connected upstream; its caller closes it."""
    check_scheme(uri)
    with _sense(_scheme(uri)):
        return _OPENERS[_scheme(uri)](uri)


def check_scheme(uri: str) -> None:
    """Raise ``CONFIG_INVALID`` where a URI names no kind of source that there is."""
    scheme = _scheme(uri)
    if scheme not in _OPENERS:
        supported = ", ".join(sorted(f"{name}://" for name in _OPENERS))
        raise PenstockError(
            "CONFIG_INVALID",
            f"upstream: scheme {scheme or '(none)'!r} is not supported; supported: {supported}{did_you_mean(scheme, _OPENERS)}",
            "Name a source as mysql://user@host:3306, postgresql://user@host/database or dataserver://host:port.",
        )


def examine(uri: str, patterns: Sequence[str]) -> list[Finding]:
    """Return what the doctor of a source finds on the tables that patterns match; none means all tables."""
    doctor = _DOCTORS.get(_scheme(uri))
    if doctor is None:
        raise PenstockError(
            "CONFIG_INVALID",
            f"uri: scheme {_scheme(uri) or '(none)'!r} has no doctor",
            "Give a mysql:// or a postgresql:// URI, as --source takes it.",
        )
    with _sense(_scheme(uri)):
        return doctor(uri, patterns)


def examine_server(uri: str) -> list[Finding]:
    """Return what is found of a source without which nothing at all is captured; raise where it cannot be entered."""
    scheme = _scheme(uri)
    with _sense(scheme):
        if scheme in {"postgres", "postgresql"}:
            from penstock.source.postgres.doctor import check_server as of_postgres

            return of_postgres(uri)
        if scheme in {"mysql", "mariadb"}:
            with _mysql_dependencies():
                from penstock.source.mysql.doctor import check_server as of_mysql
            return of_mysql(uri)
    open_upstream(uri).close()
    return []


def survey(uri: str, patterns: Sequence[str]) -> list[SurveyedTable]:
    """Return what a source has of the tables that patterns match, by name; none means all tables."""
    scheme = _scheme(uri)
    with _sense(scheme):
        if scheme in {"postgres", "postgresql"}:
            from penstock.source.postgres.doctor import survey as of_postgres

            return of_postgres(uri, patterns)
        if scheme in {"mysql", "mariadb"}:
            with _mysql_dependencies():
                from penstock.source.mysql.doctor import survey as of_mysql
            return of_mysql(uri, patterns)
    with contextlib.closing(open_upstream(uri)) as upstream:
        whole = {t.full_name: t for t in upstream.list_tables() if not patterns or TablePatterns(tuple(patterns)).match(t.schema, t.table)}
    return [surveyed(t.schema, t.table, [c.name for c in t.handle_columns], ()) for _, t in sorted(whole.items())]


@contextlib.contextmanager
def _sense(scheme: str) -> Iterator[None]:
    """Let answers that make no sense be the server's fault: whoever listens there may say anything."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        text = f"answers of the server make no sense ({type(error).__name__}); is this what {scheme}:// means?"
        raise PenstockError("DECODE_FAILED", text) from error


def _scheme(uri: str) -> str:
    """Return what a URI begins with, whether the rest of it can be read or not."""
    scheme, mark, _ = uri.partition("://")
    return scheme.lower() if mark else ""


def _examine_postgres(uri: str, patterns: Sequence[str]) -> list[Finding]:
    from penstock.source.postgres.doctor import check

    return check(uri, patterns)


def _examine_mysql(uri: str, patterns: Sequence[str]) -> list[Finding]:
    with _mysql_dependencies():
        from penstock.source.mysql.doctor import check
    return check(uri, patterns)


def _open_dataserver(uri: str) -> Upstream:
    probe = DataServerUpstream(uri, ClientSettings(call_timeout_s=CONNECT_TIMEOUT_S))
    try:
        probe.current_ts()
    finally:
        probe.close()
    return DataServerUpstream(uri)


def _open_postgres(uri: str) -> Upstream:
    # Imported here: its kernels are nothing that another source should load.
    from penstock.source.postgres.upstream import PostgresUpstream

    upstream = PostgresUpstream(uri)
    try:
        upstream.current_ts()
    except BaseException:
        upstream.close()
        raise
    return upstream


def _open_mysql(uri: str) -> Upstream:
    # Imported here for the same reason; opening it asks the server for its version.
    with _mysql_dependencies():
        from penstock.source.mysql.upstream import MySqlUpstream
    return MySqlUpstream(uri)


@contextlib.contextmanager
def _mysql_dependencies() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise PenstockError("MISSING_DEPENDENCY", f"mysql:// needs {error.name}", "pip install 'penstock[mysql]'") from None


_OPENERS: dict[str, Callable[[str], Upstream]] = {
    "dataserver": _open_dataserver,
    "mariadb": _open_mysql,
    "mysql": _open_mysql,
    "postgres": _open_postgres,
    "postgresql": _open_postgres,
}
_DOCTORS: dict[str, Callable[[str, Sequence[str]], list[Finding]]] = {
    "mariadb": _examine_mysql,
    "mysql": _examine_mysql,
    "postgres": _examine_postgres,
    "postgresql": _examine_postgres,
}
