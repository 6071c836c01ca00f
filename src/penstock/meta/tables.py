"""The tables of the meta database, as SQLAlchemy Core knows them.

``subscribe`` and ``progress`` hold those columns of the range-pull design that somebody reads, under their names there; ``feed`` holds
what one owner needs to run all tables of a feed together, ``pending_window`` the window that is being written; ``log_position``,
``log_schema`` and ``table_state`` what a source with one log must know again after a restart; ``object_link`` by what objects on shared
storage are known again; ``api_token`` who may call. Only plain column types, so that the same definitions serve SQLite, MySQL and
PostgreSQL. Runs in the server and wherever a window is planned or committed.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

META_VERSION = 3
"""Grows with every change that an older Penstock could not read."""

metadata = sa.MetaData()


class _Kept(sa.types.TypeDecorator[str]):
    """A text that every database takes: what a caller, a server or a file made it of, a NUL and half a surrogate pair do not get there."""

    impl = sa.String
    cache_ok = True

    def __init__(self, kind: sa.String, in_mysql: sa.String) -> None:
        super().__init__()
        self.kind, self.in_mysql = kind, in_mysql

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[str]:
        """Return the type of a column in one database."""
        return dialect.type_descriptor(self.in_mysql if dialect.name in {"mysql", "mariadb"} else self.kind)

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        """Return a text as it is kept and looked for."""
        return value if value is None else value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


_NAME = _Kept(sa.String(190), mysql.VARCHAR(190, charset="utf8mb4", collation="utf8mb4_bin"))
"""Names that differ in case are different names. Three of them and an id stay within the 3,072 bytes that a MySQL key may have."""
_SOURCE = sa.String(190)
_TEXT = _Kept(sa.Text(), mysql.LONGTEXT(charset="utf8mb4"))

meta_version = sa.Table(
    "meta_version",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("epoch_floor", sa.BigInteger, nullable=False),
    comment="One row. epoch_floor: the largest epoch that a removed feed reached, so that a feed of the same name starts above it.",
)

feed = sa.Table(
    "feed",
    metadata,
    sa.Column("name", _NAME, primary_key=True),
    sa.Column("uuid", sa.String(36), nullable=False),
    sa.Column("config", _TEXT, nullable=False),
    sa.Column("requested_state", sa.String(16), nullable=False),
    sa.Column("reached_state", sa.String(16), nullable=False),
    sa.Column("error_code", sa.String(64), nullable=False),
    sa.Column("error_text", _TEXT, nullable=False),
    sa.Column("owner", _NAME, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
    sa.Column("checkpoint_ts", sa.BigInteger, nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("updated_ms", sa.BigInteger, nullable=False),
    sa.Column("windows_total", sa.BigInteger, nullable=False),
    sa.Column("rows_total", sa.BigInteger, nullable=False),
    sa.Column("nbytes_total", sa.BigInteger, nullable=False),
    sa.Column("files_total", sa.BigInteger, nullable=False),
    sa.Column("config_version", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("wanted_owner", _NAME, nullable=False, server_default=""),
)

feed_audit = sa.Table(
    "feed_audit",
    metadata,
    sa.Column("feed", _NAME, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at_ms", sa.BigInteger, nullable=False),
    sa.Column("changed_by", _NAME, nullable=False),
    sa.Column("what", sa.String(32), nullable=False),
    sa.Column("why", _TEXT, nullable=False),
    sa.Column("old", _TEXT, nullable=False),
    sa.Column("new", _TEXT, nullable=False),
    comment="What was asked of a feed and what it reached: who, when, what, why. Stays a while after the feed is gone.",
)

feed_retry = sa.Table(
    "feed_retry",
    metadata,
    sa.Column("feed", _NAME, primary_key=True),
    sa.Column("since_ms", sa.BigInteger, nullable=False),
    sa.Column("next_attempt_ms", sa.BigInteger, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False),
    comment="Feeds that are tried again: since when, when next, and how often in a row without progress.",
)

server = sa.Table(
    "server",
    metadata,
    sa.Column("owner", _NAME, primary_key=True),
    sa.Column("url", _TEXT, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("seen_ms", sa.BigInteger, nullable=False),
    comment="Servers that share this database, by the name under which they own feeds; seen_ms: when one last said that it lives.",
)

subscribe = sa.Table(
    "subscribe",
    metadata,
    sa.Column("db_name", _NAME, primary_key=True),
    sa.Column("table_name", _NAME, primary_key=True),
    sa.Column("subscribe_name", _NAME, primary_key=True),
    sa.Column("table_id", sa.BigInteger, nullable=False),
    sa.Column("master_addrs", _TEXT, nullable=False),
    sa.Column("sink", _TEXT, nullable=False),
    sa.Column("cancel", sa.Integer, nullable=False),
    sa.Column("owner", _NAME, nullable=False),
    sa.Index("subscribe_by_name", "subscribe_name"),
)

progress = sa.Table(
    "progress",
    metadata,
    sa.Column("db_name", _NAME, primary_key=True),
    sa.Column("table_name", _NAME, primary_key=True),
    sa.Column("subscribe_name", _NAME, primary_key=True),
    sa.Column("range_id", sa.String(64), primary_key=True),
    sa.Column("progress_init_snapshot_version", sa.BigInteger, nullable=False),
    sa.Column("checkpoint_ts", sa.BigInteger, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("position", _TEXT, nullable=False),
    sa.Column("rows_total", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("nbytes_total", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("files_total", sa.BigInteger, nullable=False, server_default="0"),
    sa.Index("progress_by_name", "subscribe_name", "range_id", unique=True),
    comment="range_id is the dispatcher, as text. checkpoint_ts: up to where its log is delivered. epoch: of the owner who said so.",
)

dispatcher = sa.Table(
    "dispatcher",
    metadata,
    sa.Column("feed", _NAME, primary_key=True),
    sa.Column("range_id", sa.String(64), primary_key=True),
    sa.Column("begin_ts", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("end_ts", sa.BigInteger, nullable=False),
    sa.Column("table_id", sa.BigInteger, nullable=False),
    sa.Column("db_name", _NAME, nullable=False),
    sa.Column("table_name", _NAME, nullable=False),
    sa.Column("document", _TEXT, nullable=False),
    comment="Which dispatchers a feed has while its checkpoint is in [begin_ts, end_ts); an end of 0: it lives.",
)

pending_window = sa.Table(
    "pending_window",
    metadata,
    sa.Column("feed", _NAME, primary_key=True),
    sa.Column("from_ts", sa.BigInteger, nullable=False),
    sa.Column("to_ts", sa.BigInteger, nullable=False),
    sa.Column("plan", _TEXT, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("begun_ms", sa.BigInteger, nullable=False),
)

resnapshot = sa.Table(
    "resnapshot",
    metadata,
    sa.Column("feed", _NAME, primary_key=True),
    sa.Column("from_ts", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("to_ts", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("begun_ms", sa.BigInteger, nullable=False),
    comment="Windows in which a feed delivered what differed from a new snapshot, because the history was gone.",
)

sink_report = sa.Table(
    "sink_report",
    metadata,
    sa.Column("feed", _NAME, primary_key=True),
    sa.Column("report", _TEXT, nullable=False),
    comment="What the sinks of a feed's tasks counted, added up over its committed windows.",
)

log_position = sa.Table(
    "log_position",
    metadata,
    sa.Column("source", _SOURCE, primary_key=True),
    sa.Column("ts", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("mark", sa.Integer, nullable=False),
    sa.Column("position", _TEXT, nullable=False),
    sa.Column("written_ms", sa.BigInteger, nullable=False),
)
log_reader = sa.Table(
    "log_reader",
    metadata,
    sa.Column("source", _SOURCE, primary_key=True),
    sa.Column("owner", _NAME, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
)
object_link = sa.Table(
    "object_link",
    metadata,
    sa.Column("source", _SOURCE, primary_key=True),
    sa.Column("links", sa.String(190), nullable=False),
    comment="The links of the marks that were last written beside the objects of an event store, the newest last.",
)
log_schema = sa.Table(
    "log_schema",
    metadata,
    sa.Column("source", _SOURCE, primary_key=True),
    sa.Column("table_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("document", _TEXT, nullable=False),
)

table_state = sa.Table(
    "table_state",
    metadata,
    sa.Column("source", _SOURCE, primary_key=True),
    sa.Column("table_id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("db_name", _NAME, primary_key=True),
    sa.Column("table_name", _NAME, primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("reason", _TEXT, nullable=False),
    sa.Column("code", sa.String(64), nullable=False),
    sa.Column("hint", _TEXT, nullable=False),
    sa.Column("since_ms", sa.BigInteger, nullable=False),
    sa.Column("doubt_ts", sa.BigInteger, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("next_attempt_ms", sa.BigInteger, nullable=False),
    sa.Column("settled_ts", sa.BigInteger, nullable=False),
    comment="Tables of which the log does not tell every row, until they were read again. One row for each table id; names where it is 0.",
)

commit_mark = sa.Table(
    "commit_mark",
    metadata,
    sa.Column("writer", sa.String(32), primary_key=True),
    sa.Column("writes", sa.BigInteger, nullable=False),
    sa.Column("written_ms", sa.BigInteger, nullable=False),
    comment="How often each process wrote, where meta-url has several addresses: one whose count went back has lost commits.",
)

api_token = sa.Table(
    "api_token",
    metadata,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("name", _NAME, nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("created_ms", sa.BigInteger, nullable=False),
    sa.Column("expires_ms", sa.BigInteger, nullable=False),
    sa.Column("revoked_ms", sa.BigInteger, nullable=False),
    comment="Who may call the API. digest: SHA-256 of the token, which is kept nowhere.",
)
