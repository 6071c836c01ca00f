"""PostgreSQL as a kind of target: ``postgresql://user:password@host:5432/database``. Runs on executors and in the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from penstock.model.finding import Finding
from penstock.settings.loader import dotted_keys
from penstock.sink.kind import TargetKind
from penstock.sink.options import read_options
from penstock.sink.postgres.settings import PostgresSettings
from penstock.target.kind import SinkRun

if TYPE_CHECKING:
    from penstock.sink.tables.maintainer import TableMaintainer
    from penstock.sink.tables.reading import DatabaseTables
    from penstock.sink.tables.sink import TableSink
    from penstock.sink.tables.state import DatabaseState
    from penstock.target.storage import Guard

_PARAMETERS = frozenset(
    {"sslmode", "sslrootcert", "sslcert", "sslkey", "connect_timeout", "require_auth", "application_name", "target_session_attrs"}
)


class PostgresKind(TargetKind):
    """Tables of a PostgreSQL database."""

    name = "postgres"
    option_keys = frozenset(dotted_keys(PostgresSettings))
    caller_parameters = frozenset({"sslmode", "connect_timeout", "application_name"})

    def settings(self, uri: str, options: Mapping[str, Any]) -> tuple[str, PostgresSettings]:
        """Return the URI without options, and the settings."""
        bare, settings = read_options(PostgresSettings, uri, options, _PARAMETERS)
        return f"postgresql{bare[bare.index('://') :]}", settings

    def make_sink(self, uri: str, options: Mapping[str, Any], guard: Guard | None, run: SinkRun) -> TableSink:
        """Return the sink of one task."""
        from penstock.sink.postgres.database import PostgresDatabase
        from penstock.sink.tables.sink import TableSink

        bare, settings = self.settings(uri, options)
        return TableSink(PostgresDatabase(bare, settings), settings, run, guard)

    def make_maintainer(
        self, uri: str, options: Mapping[str, Any], guard: Guard, run: SinkRun, answer_s_max: float | None = None
    ) -> TableMaintainer:
        """Return the part that acts once per feed."""
        from penstock.sink.postgres.database import PostgresDatabase
        from penstock.sink.tables.database import patience_of
        from penstock.sink.tables.maintainer import TableMaintainer

        bare, settings = self.settings(uri, options)
        return TableMaintainer(PostgresDatabase(bare, settings), settings, run, guard, patience_of(answer_s_max))

    def make_state(self, uri: str, options: Mapping[str, Any]) -> DatabaseState:
        """Return what the tables hold."""
        from penstock.sink.postgres.database import PostgresDatabase
        from penstock.sink.tables.state import DatabaseState

        bare, settings = self.settings(uri, options)
        return DatabaseState(PostgresDatabase(bare, settings), settings)

    def make_tables(self, uri: str, options: Mapping[str, Any]) -> DatabaseTables:
        """Return the tables that the target holds."""
        from penstock.sink.postgres.database import PostgresDatabase
        from penstock.sink.tables.reading import DatabaseTables

        bare, settings = self.settings(uri, options)
        return DatabaseTables(PostgresDatabase(bare, settings), settings)

    def check(self, uri: str, options: Mapping[str, Any], feed: str | None) -> list[Finding]:
        """Return whether the server can be entered and written to, and whose the books are."""
        from penstock.sink.postgres.database import PostgresDatabase
        from penstock.sink.tables.check import check_tables

        bare, settings = self.settings(uri, options)
        return check_tables(PostgresDatabase(bare, settings), settings, feed)

    def hosts(self, uri: str) -> Sequence[str]:
        """Return the server's host."""
        host = urlsplit(uri).hostname
        return (host,) if host else ()


KIND = PostgresKind()
