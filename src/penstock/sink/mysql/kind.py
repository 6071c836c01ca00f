"""MySQL and MariaDB as a kind of target: ``mysql://user:password@host:3306/database``. Runs on executors and in the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.model.finding import Finding
from penstock.settings.loader import dotted_keys
from penstock.sink.kind import TargetKind
from penstock.sink.mysql.settings import MySqlSettings
from penstock.sink.options import read_options
from penstock.target.kind import SinkRun

if TYPE_CHECKING:
    from penstock.sink.tables.maintainer import TableMaintainer
    from penstock.sink.tables.reading import DatabaseTables
    from penstock.sink.tables.sink import TableSink
    from penstock.sink.tables.state import DatabaseState
    from penstock.target.storage import Guard

_PARAMETERS = frozenset({"ssl", "ssl-ca", "ssl-cert", "ssl-key", "connect-timeout-s", "clear-password"})


class MySqlKind(TargetKind):
    """Tables of a MySQL or MariaDB server."""

    name = "mysql"
    option_keys = frozenset(dotted_keys(MySqlSettings))
    caller_parameters = frozenset({"ssl", "connect-timeout-s"})

    def settings(self, uri: str, options: Mapping[str, Any]) -> tuple[str, MySqlSettings]:
        """Return the URI without options, and the settings."""
        return read_options(MySqlSettings, uri, options, _PARAMETERS)

    def make_sink(self, uri: str, options: Mapping[str, Any], guard: Guard | None, run: SinkRun) -> TableSink:
        """Return the sink of one task."""
        from penstock.sink.mysql.database import MySqlDatabase
        from penstock.sink.tables.sink import TableSink

        bare, settings = self.settings(uri, options)
        return TableSink(MySqlDatabase(bare, settings), settings, run, guard)

    def make_maintainer(
        self, uri: str, options: Mapping[str, Any], guard: Guard, run: SinkRun, answer_s_max: float | None = None
    ) -> TableMaintainer:
        """Return the part that acts once per feed."""
        from penstock.sink.mysql.database import MySqlDatabase
        from penstock.sink.tables.database import patience_of
        from penstock.sink.tables.maintainer import TableMaintainer

        bare, settings = self.settings(uri, options)
        return TableMaintainer(MySqlDatabase(bare, settings), settings, run, guard, patience_of(answer_s_max))

    def make_state(self, uri: str, options: Mapping[str, Any]) -> DatabaseState:
        """Return what the tables hold."""
        from penstock.sink.mysql.database import MySqlDatabase
        from penstock.sink.tables.state import DatabaseState

        bare, settings = self.settings(uri, options)
        return DatabaseState(MySqlDatabase(bare, settings), settings)

    def make_tables(self, uri: str, options: Mapping[str, Any]) -> DatabaseTables:
        """Return the tables that the target holds."""
        from penstock.sink.mysql.database import MySqlDatabase
        from penstock.sink.tables.reading import DatabaseTables

        bare, settings = self.settings(uri, options)
        return DatabaseTables(MySqlDatabase(bare, settings), settings)

    def check(self, uri: str, options: Mapping[str, Any], feed: str | None) -> list[Finding]:
        """Return whether the server can be entered and written to, and whose the books are."""
        from penstock.sink.mysql.database import MySqlDatabase
        from penstock.sink.tables.check import check_tables

        bare, settings = self.settings(uri, options)
        return check_tables(MySqlDatabase(bare, settings), settings, feed)

    def hosts(self, uri: str) -> Sequence[str]:
        """Return the server's host."""
        host = urlsplit(uri).hostname
        return (host,) if host else ()


KIND = MySqlKind()
