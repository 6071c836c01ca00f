"""The addresses of a replicated meta database: which of them is the primary, and whether it has lost commits.

A URL may name several servers, ``mysql://user@first:3306,second:3306/meta``. Whoever is connected is connected to the one that takes
writes; after it is gone, or read-only, all of them are asked again. Every process that writes keeps a count in the database, moved by each
of its transactions, and knows the last one that was acknowledged. Invariants: no connection to a server that lacks an acknowledged commit
of this process, or to one of two that take writes, is ever given out: both are ``META_DIVERGED``, because an epoch could be given twice
there. Thread safe. Runs wherever the meta database is opened.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import sqlalchemy as sa

from penstock.meta.tables import commit_mark
from penstock.model.clock import SystemClock
from penstock.model.errors import PenstockError

_SEVERAL = re.compile(r"(?P<before>[^/?#]+://(?:[^/?#]*@)?)(?P<hosts>[^/?#@]*,[^/?#@]*)(?P<after>[/?#].*)?", re.DOTALL)
_HOST = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:,\[\]]+)(?::\d{1,5})?")
_KEPT_MS = 90 * 86_400_000
_READ_ONLY = {"postgresql": "SELECT pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on'"}
_READ_ONLY_ELSEWHERE = "SELECT @@global.read_only"

log = logging.getLogger(__name__)

Connect = Callable[[sa.URL], Any]
"""Opens a connection of the driver."""


def parse(url: str) -> list[sa.URL]:
    """Return the URL of each server that a URL names; raise ``CONFIG_INVALID``."""
    several = _SEVERAL.fullmatch(url)
    if several is None:
        return [_parse_one(url)]
    hosts = several["hosts"].split(",")
    if not all(_HOST.fullmatch(host) for host in hosts) or len(set(hosts)) != len(hosts):
        raise PenstockError("CONFIG_INVALID", "meta-url: each of several addresses must look like host:3306, and be another one")
    found = [_parse_one(f"{several['before']}{host}{several['after'] or ''}") for host in hosts]
    if found[0].get_backend_name() not in {"mysql", "mariadb", "postgresql"}:
        raise PenstockError("CONFIG_INVALID", "meta-url: only a MariaDB, MySQL or PostgreSQL has several addresses")
    return found


def shown(places: list[sa.URL]) -> str:
    """Return the URL without its password."""
    first = places[0].render_as_string(hide_password=True)
    if len(places) == 1:
        return first
    return first.replace(_name(places[0]), ",".join(_name(place) for place in places), 1)


def _parse_one(url: str) -> sa.URL:
    try:
        return sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):
        raise PenstockError("CONFIG_INVALID", "meta.url: not a database URL", "Use sqlite:////path/to/meta.db.") from None


def _name(place: sa.URL) -> str:
    host = f"[{place.host}]" if ":" in (place.host or "") else place.host or ""
    return host if place.port is None else f"{host}:{place.port}"


class _Found(NamedTuple):
    place: sa.URL
    connection: Any
    is_behind: bool


class Addresses:
    """The servers of one meta database, and what this process knows of it."""

    def __init__(self, places: list[sa.URL]) -> None:
        self._places = places
        self._writer = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._current: sa.URL | None = None
        self._acknowledged = 0
        self._begun = False

    def connect(self, dialect: sa.Dialect, open_one: Connect) -> Any:
        """Return a connection to the primary; raise ``META_UNAVAILABLE`` where nobody is one, ``META_DIVERGED`` where that is not sure."""
        current = self._current
        if current is not None:
            with contextlib.suppress(*_lost(dialect)):
                found = self._look(dialect, current, open_one)
                if found is not None and not found.is_behind:
                    return found.connection
                if found is not None:
                    found.connection.close()
        return self._choose(dialect, open_one)

    def check(self, dialect: sa.Dialect, connection: Any) -> None:
        """Raise what makes the pool drop a connection that was used before and leads to no primary any more."""
        try:
            read_only = _asked(connection, _READ_ONLY.get(dialect.name, _READ_ONLY_ELSEWHERE))
        except _lost(dialect) as error:
            raise sa.exc.DisconnectionError("the server does not answer") from error
        if read_only:
            raise sa.exc.DisconnectionError("the server is read-only")

    def begin(self, transaction: Callable[[], contextlib.AbstractContextManager[sa.Connection]]) -> None:
        """Make this process's count, once."""
        with self._lock:
            if self._begun:
                return
            now_ms = SystemClock().now_ms()
            with transaction() as connection:
                connection.execute(commit_mark.delete().where(commit_mark.c.written_ms < now_ms - _KEPT_MS))
                connection.execute(commit_mark.insert().values(writer=self._writer, writes=0, written_ms=now_ms))
            self._begun = True

    def count(self, connection: sa.Connection) -> int:
        """Move the count, as the last thing of a transaction; return what it is if that is committed."""
        mine = commit_mark.c.writer == self._writer
        moved = commit_mark.update().where(mine).values(writes=commit_mark.c.writes + 1, written_ms=SystemClock().now_ms())
        connection.execute(moved)
        writes = connection.execute(sa.select(commit_mark.c.writes).where(mine)).scalar()
        # The row is locked until the end, so no later transaction of another thread is acknowledged meanwhile.
        if writes is None or writes <= self._acknowledged:
            raise _diverged(f"the count of this process is {writes}, and {self._acknowledged} was acknowledged")
        return int(writes)

    def acknowledge(self, writes: int) -> None:
        """Remember that a transaction with this count was committed."""
        with self._lock:
            self._acknowledged = max(self._acknowledged, writes)

    def _choose(self, dialect: sa.Dialect, open_one: Connect) -> Any:
        """Ask every address, and take the one that is the primary."""
        found: list[_Found] = []
        told: list[str] = []
        for place in self._places:
            try:
                one = self._look(dialect, place, open_one)
            except _lost(dialect) as error:
                told.append(f"{_name(place)}: {str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}")
                continue
            if one is None:
                told.append(f"{_name(place)} is read-only")
            else:
                found.append(one)
        whole = [one for one in found if not one.is_behind]
        chosen = whole[0] if len(whole) == 1 else None
        for one in found:
            if one is not chosen:
                one.connection.close()
        if chosen is not None:
            if len(found) > 1:
                log.error("a server of the meta database takes writes and lacks commits", extra={"addresses": _listed(found, whole)})
            if self._current not in {None, chosen.place}:
                log.warning("the meta database has another primary", extra={"address": _name(chosen.place)})
            self._current = chosen.place
            return chosen.connection
        if len(whole) > 1:
            raise _diverged(f"{_listed(whole)} both take writes")
        if found:
            raise _diverged(f"{_listed(found)} lacks commits that this process was told of")
        raise PenstockError("META_UNAVAILABLE", f"no address of the meta database takes writes: {'; '.join(told)}")

    def _look(self, dialect: sa.Dialect, place: sa.URL, open_one: Connect) -> _Found | None:
        """Return a connection to a server, or None where it is read-only."""
        connection = open_one(place)
        try:
            if _asked(connection, _READ_ONLY.get(dialect.name, _READ_ONLY_ELSEWHERE)):
                connection.close()
                return None
            behind = False
            if self._acknowledged:
                writes = _asked(connection, f"SELECT writes FROM commit_mark WHERE writer = '{self._writer}'")
                behind = writes is None or int(writes) < self._acknowledged
        except BaseException:
            with contextlib.suppress(*_lost(dialect)):
                connection.close()
            raise
        return _Found(place, connection, behind)


def _asked(connection: Any, question: str) -> Any:
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(question)
        row = cursor.fetchone()
    connection.rollback()
    return row[0] if row else None


def _lost(dialect: sa.Dialect) -> tuple[type[BaseException], ...]:
    driver: Any = dialect.loaded_dbapi
    return driver.Error, OSError


def _listed(found: list[_Found], without: list[_Found] | None = None) -> str:
    return " and ".join(_name(one.place) for one in found if one not in (without or []))


def _diverged(what: str) -> PenstockError:
    log.error("the meta database has diverged", extra={"what": what})
    return PenstockError("META_DIVERGED", what)
