"""What the codes of errors mean: for each the kind, a sentence, and the way out.

``docs/errors.md`` is generated from the table. Runs anywhere.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class ErrorKind(StrEnum):
    """What the caller of a failed operation does about it."""

    TRANSIENT = "TRANSIENT"
    BLOCKED = "BLOCKED"
    INVALID = "INVALID"
    CORRUPT = "CORRUPT"
    FENCED = "FENCED"
    BUG = "BUG"


class CodeEntry(NamedTuple):
    """One row of the code table."""

    kind: ErrorKind
    meaning: str
    hint: str


CODES: dict[str, CodeEntry] = {
    "CONFIG_INVALID": CodeEntry(
        ErrorKind.INVALID,
        "The configuration does not validate.",
        "Change what the message names, then try again.",
    ),
    "TABLE_UNKNOWN": CodeEntry(
        ErrorKind.INVALID,
        "A table or pattern matches nothing upstream.",
        "See `penstock tables` with the source's URI, and correct the name.",
    ),
    "SINK_URI_INVALID": CodeEntry(
        ErrorKind.INVALID, "The sink URI cannot be understood.", "Use file:///dir, s3://bucket/prefix, or a scheme of docs/targets."
    ),
    "SINK_UNWRITABLE": CodeEntry(
        ErrorKind.BLOCKED, "The target refuses writes.", "Check that it exists, its permissions and its credentials."
    ),
    "SINK_OCCUPIED": CodeEntry(
        ErrorKind.INVALID, "The target holds files of another feed.", "Choose an empty prefix, or remove the other feed's files."
    ),
    "SINK_BEHIND": CodeEntry(
        ErrorKind.BLOCKED,
        "The target lacks what was delivered to it before: it is an older copy, or the feed's books in it were emptied.",
        "`penstock feed reset NAME --to snapshot` compares all tables with the source and delivers what differs.",
    ),
    "SINK_LOST": CodeEntry(
        ErrorKind.BLOCKED,
        "The target is not the one that the feed delivered to: it was moved, unmounted or emptied.",
        "Put it back in its place, without what was made there since, and resume the feed; or go on elsewhere by `penstock feed alter`.",
    ),
    "SINK_NOT_READABLE": CodeEntry(
        ErrorKind.BLOCKED,
        "What is in the target cannot be read back, so it cannot be compared, nor go on where history is lost.",
        "Deliver to an empty target with a new feed, which begins with the state of the tables.",
    ),
    "SINK_DDL_REFUSED": CodeEntry(
        ErrorKind.BLOCKED,
        "The target cannot show a table, or what a DDL makes of it.",
        "Leave the table out of the feed, or change the setting that the message names; see the page of the target.",
    ),
    "SINK_FULL": CodeEntry(
        ErrorKind.TRANSIENT, "The target has no room.", "It is tried again by itself; free space, raise the quota, or let old files expire."
    ),
    "SINK_VALUE_REFUSED": CodeEntry(
        ErrorKind.BLOCKED, "The target cannot hold a value.", "Change the value or the column, or set unfit-values to null."
    ),
    "SINK_UNAVAILABLE": CodeEntry(ErrorKind.TRANSIENT, "The target did not answer.", "It is retried; check the target's health."),
    "SINK_REFUSED": CodeEntry(
        ErrorKind.BLOCKED, "The target does not take some rows.", "Let it take them and resume the feed, or give it a dead-letter place."
    ),
    "DEAD_LETTER_UNKNOWN": CodeEntry(
        ErrorKind.INVALID, "The feed has no such dead letter.", "List those that it has: penstock feed dead-letters list FEED."
    ),
    "DEAD_LETTER_ORDER": CodeEntry(
        ErrorKind.INVALID,
        "An older dead letter of the same lane comes first.",
        "Retry that one before, or all in their order: penstock feed dead-letters retry FEED.",
    ),
    "SINK_CONFLICT": CodeEntry(
        ErrorKind.CORRUPT, "A published file exists with different bytes.", "Something else writes there; give the feed its own prefix."
    ),
    "SINK_MESSAGE_TOO_LARGE": CodeEntry(
        ErrorKind.BLOCKED,
        "A row is larger than the messages that the target takes.",
        "Raise max-message-bytes here and at the brokers, or set claim-check to object storage for such messages.",
    ),
    "SINK_PROGRESS_LOST": CodeEntry(
        ErrorKind.BLOCKED,
        "The target no longer knows how far the feed has come, so some rows or DDLs might come twice.",
        "Let readers drop what they have of this window, or live with repeats; then set sink.lost-progress = go-on. Or use another prefix.",
    ),
    "SINK_NO_TRANSACTIONS": CodeEntry(
        ErrorKind.INVALID,
        "The brokers have no transactions, without which messages may come twice.",
        "Set delivery = at-least-once if readers can live with that, or use brokers with transactions.",
    ),
    "CALLBACK_FAILED": CodeEntry(
        ErrorKind.BLOCKED, "A capture's callable raised an error.", "Mend what its cause says; with the same data_dir it goes on there."
    ),
    "NOT_CAUGHT_UP": CodeEntry(ErrorKind.TRANSIENT, "A feed did not catch up in time.", "Wait longer; its progress says what for."),
    "CUT_CONFLICT": CodeEntry(
        ErrorKind.TRANSIENT, "Two attempts of a window cut files at different rows.", "The window is tried again with the recorded cuts."
    ),
    "SPOOL_FAILED": CodeEntry(
        ErrorKind.BLOCKED,
        "The sink's spool on disk is full or failing.",
        "Free space in the spool's directory, or give another one with spool-dir; then resume the feed.",
    ),
    "FAILPOINT": CodeEntry(ErrorKind.TRANSIENT, "A test made a step fail on purpose.", "Unset PENSTOCK_FAILPOINTS."),
    "UPSTREAM_UNREACHABLE": CodeEntry(
        ErrorKind.TRANSIENT, "The upstream does not answer.", "Check the address, that the server runs, and the network between."
    ),
    "UPSTREAM_REFUSED": CodeEntry(ErrorKind.BLOCKED, "The upstream refused the request.", "Read its message; check the privileges."),
    "UPSTREAM_CHANGING": CodeEntry(
        ErrorKind.TRANSIENT, "The upstream's tables change too quickly to be looked at.", "Run it again when the DDLs have ended."
    ),
    "TABLE_REWRITTEN": CodeEntry(
        ErrorKind.TRANSIENT,
        "A DDL gave the rows of a table values of another form, so it begins again empty.",
        "Nothing is to be done: all of its rows are read again.",
    ),
    "TABLE_PAUSED": CodeEntry(
        ErrorKind.BLOCKED,
        "A table is left out: an operator excluded it, or the log does not tell what rows it has and on-rewrite says so.",
        "Run penstock feed table include FEED TABLE when the table shall be delivered again.",
    ),
    "FILTER_BROKEN": CodeEntry(
        ErrorKind.BLOCKED,
        "An expression of a feed's filter does not fit the columns of its table, or does not always give the same.",
        "Correct the expression with penstock feed alter, or the table; then the table is delivered again, with what differs by then.",
    ),
    "FILTER_FAILED": CodeEntry(
        ErrorKind.BLOCKED,
        "An expression of a feed's filter failed for a row. Its table is stopped; the rest of the feed goes on.",
        "Use an expression that gives NULL instead, such as try_cast or try_divide, with penstock feed alter; or mend the row and run "
        "penstock feed table retry FEED TABLE. The table comes back with what differs by then.",
    ),
    "UPSTREAM_MISCONFIGURED": CodeEntry(
        ErrorKind.BLOCKED, "A setting of the upstream does not allow capture.", "Run `penstock doctor`: it says what fixes it."
    ),
    "LOG_HELD": CodeEntry(
        ErrorKind.TRANSIENT,
        "Another server reads the log of this source.",
        "It passes when the feeds of that server have moved; where it stays, drain or stop the server that the message names.",
    ),
    "LOG_PURGED": CodeEntry(
        ErrorKind.BLOCKED,
        "The upstream's log does not reach back to where capture stopped.",
        "The feed takes a new snapshot; keep the upstream's logs for longer than the longest pause.",
    ),
    "SNAPSHOT_DUE": CodeEntry(
        ErrorKind.TRANSIENT,
        "The feed starts again with a new snapshot.",
        "Nothing to do; keep the upstream's logs for longer than the longest pause.",
    ),
    "EPOCH_NOT_MATCH": CodeEntry(ErrorKind.TRANSIENT, "A range was split, merged or moved.", "Ranges are looked up again."),
    "NOT_LEADER": CodeEntry(ErrorKind.TRANSIENT, "The store does not lead the range.", "The leader is looked up again."),
    "REGION_NOT_FOUND": CodeEntry(ErrorKind.TRANSIENT, "The store does not hold the range.", "Ranges are looked up again."),
    "SNAPSHOT_LOST": CodeEntry(ErrorKind.TRANSIENT, "The upstream gave up a snapshot that is being read.", "It is read again."),
    "CONGESTED": CodeEntry(ErrorKind.TRANSIENT, "The store or the log service is congested.", "It is retried after a pause."),
    "TXN_CONFLICT": CodeEntry(ErrorKind.TRANSIENT, "A transaction met a lock or a newer write.", "Retry the whole transaction."),
    "STALE_READ": CodeEntry(ErrorKind.BLOCKED, "History does not reach back to the requested ts.", "Take a new snapshot of the table."),
    "OBJECT_MISSING": CodeEntry(
        ErrorKind.CORRUPT, "An object that the manifest names is gone.", "Restore it, or remove the span's store and capture again."
    ),
    "OBJECT_CORRUPT": CodeEntry(
        ErrorKind.CORRUPT, "Stored bytes fail their checksum or magic.", "Restore the file, or remove the span's store and capture again."
    ),
    "WAL_CORRUPT": CodeEntry(
        ErrorKind.CORRUPT, "The write-ahead log is damaged before its end.", "Remove the span's store and capture again."
    ),
    "OBJECT_COLLECTED": CodeEntry(
        ErrorKind.TRANSIENT, "An object was collected while it was read.", "Nothing to do: the window is read again from what there is now."
    ),
    "OBJECT_UNAVAILABLE": CodeEntry(
        ErrorKind.TRANSIENT, "The object store of the event store did not answer.", "It is retried; check the object store's health."
    ),
    "SPAN_UNKNOWN": CodeEntry(
        ErrorKind.INVALID, "The event store holds no such span.", "Register the span first; after a take-over, plan the window again."
    ),
    "WINDOW_INVALID": CodeEntry(
        ErrorKind.INVALID, "A window ends before it starts or beyond the resolved ts.", "Read only windows that plan_window gave."
    ),
    "STORE_UNREACHABLE": CodeEntry(
        ErrorKind.TRANSIENT, "The event store's Flight service does not answer.", "It is retried; check that the log service runs."
    ),
    "STORE_NOT_SHARED": CodeEntry(
        ErrorKind.BLOCKED,
        "Executors on another machine cannot write to the directory of the event store.",
        "Give store.objects: storage that the server and its executors reach. Then resume the feed.",
    ),
    "OBJECTS_FOREIGN": CodeEntry(
        ErrorKind.BLOCKED,
        "The shared objects of the event store were last written with another meta database, perhaps a copy of this one or its original.",
        "Stop one of the two for good. To go on with this one, give another store.objects or empty the one that is given, then resume.",
    ),
    "STORE_FAILED": CodeEntry(ErrorKind.BLOCKED, "The event store could not persist data.", "Check disk space and permissions."),
    "RESOLVED_TS_VIOLATED": CodeEntry(
        ErrorKind.CORRUPT, "A row arrived at or below a resolved ts that was already emitted.", "The span is pulled again; report it."
    ),
    "DECODE_FAILED": CodeEntry(
        ErrorKind.CORRUPT, "Bytes from the upstream do not decode.", "Check that the source's version is supported; report it."
    ),
    "PREWRITE_MISSING": CodeEntry(
        ErrorKind.TRANSIENT, "A commit came from a range without its prewrite.", "The range is registered again from its resolved ts."
    ),
    "SCHEMA_UNKNOWN": CodeEntry(
        ErrorKind.TRANSIENT, "No schema version is known for a row.", "The schema history is loaded again from the upstream."
    ),
    "SCHEMA_CHANGED": CodeEntry(
        ErrorKind.BLOCKED,
        "A table got columns that a running query does not show.",
        "Start the query again on the same checkpoint location: it goes on there with the new columns.",
    ),
    "TYPE_UNSUPPORTED": CodeEntry(ErrorKind.INVALID, "A column type is not supported.", "Exclude the table or change the column."),
    "DDL_UNSUPPORTED": CodeEntry(
        ErrorKind.BLOCKED,
        "A DDL changes a table in a way that a running feed does not follow.",
        "Everything before the DDL is delivered; create a new feed on the table, into a prefix of its own.",
    ),
    "FEED_EXISTS": CodeEntry(ErrorKind.INVALID, "A feed of this name exists.", "Choose another name or remove the feed."),
    "SQL_INVALID": CodeEntry(
        ErrorKind.INVALID, "A SQL statement cannot be understood.", "The caret shows the place; docs/sql.md has the statements."
    ),
    "FEED_UNKNOWN": CodeEntry(ErrorKind.INVALID, "No feed of this name exists.", "See `penstock feed list`."),
    "FEED_PAUSED": CodeEntry(
        ErrorKind.BLOCKED,
        "The feed was paused or cancelled, so the window under way is not committed.",
        "`penstock feed resume` lets a paused feed go on: the window is done again, with the same files.",
    ),
    "FEED_ALTERED": CodeEntry(
        ErrorKind.TRANSIENT,
        "The feed was altered, and its window under the configuration before is done.",
        "Nothing to do: it goes on with the new one.",
    ),
    "FEED_FINISHED": CodeEntry(
        ErrorKind.BLOCKED,
        "The feed has delivered everything up to its until-ts.",
        "Nothing to do; what it delivered stays. A later until-ts lets it go on.",
    ),
    "FEED_ENDED": CodeEntry(
        ErrorKind.INVALID, "The feed has ended for good, or shall be removed.", "Create another one, or `penstock feed clone` it."
    ),
    "FEED_FAILED": CodeEntry(
        ErrorKind.TRANSIENT,
        "A run of the feed ended with an error that is none of Penstock's own: something that Spark, a driver or the machine said.",
        "The feed is started again, for as long as it takes. See the cause in `penstock feed show`, and act if it lasts.",
    ),
    "WORKER_LOST": CodeEntry(
        ErrorKind.TRANSIENT,
        "A process that worked for the feed ended in the middle: an executor or its Python worker.",
        "The window is done again. If it comes back, look whether the machine runs out of memory.",
    ),
    "FENCED": CodeEntry(ErrorKind.FENCED, "Another owner holds the lease.", "Nothing to do: the other owner goes on."),
    "WINDOW_OUT_OF_ORDER": CodeEntry(
        ErrorKind.TRANSIENT, "A window does not start at the feed's checkpoint.", "The feed goes on from its checkpoint; nothing to do."
    ),
    "META_UNAVAILABLE": CodeEntry(ErrorKind.TRANSIENT, "The meta database does not answer.", "Check its URL and health."),
    "META_INCOMPATIBLE": CodeEntry(
        ErrorKind.INVALID, "The meta database was written by another version.", "Use the Penstock version that wrote it, or a new database."
    ),
    "META_DIVERGED": CodeEntry(
        ErrorKind.BLOCKED,
        "The addresses of meta-url do not hold one database: two take writes, or commits that were acknowledged are missing.",
        "Make the server that has all commits the only one that takes writes. Where commits are lost for good, run `penstock meta check` "
        "and start the servers again.",
    ),
    "META_NOT_EMPTY": CodeEntry(
        ErrorKind.INVALID,
        "A backup is restored into an empty meta database only.",
        "Name another database; --force deletes everything that is in this one first.",
    ),
    "META_BACKUP_BROKEN": CodeEntry(
        ErrorKind.CORRUPT, "A backup of the meta database is cut off or changed.", "Use another one: nothing of it was restored."
    ),
    "META_BEHIND_TARGET": CodeEntry(
        ErrorKind.BLOCKED,
        "The target is further than the meta database: that lost what it knew, as one does that an old backup was restored into.",
        "Let the target count, by the command in the message, and the feed goes on; or restore a newer backup; or clone the feed.",
    ),
    "META_SEALED": CodeEntry(
        ErrorKind.BLOCKED,
        "The configuration of a feed is sealed with a key that this server does not have.",
        "Give every server of the meta database the same PENSTOCK_META_KEY, or restore the key file beside an embedded one.",
    ),
    "SERVER_UNREACHABLE": CodeEntry(
        ErrorKind.TRANSIENT, "No Penstock server answers.", "Start one with `penstock server`, or pass --server."
    ),
    "API_TOKEN_REQUIRED": CodeEntry(
        ErrorKind.INVALID,
        "The call carries no token, or one that is unknown, expired or revoked.",
        "Call as the user that runs the server, or set PENSTOCK_TOKEN or PENSTOCK_TOKEN_FILE; `penstock token create` makes tokens.",
    ),
    "API_FORBIDDEN": CodeEntry(
        ErrorKind.INVALID, "The token's role does not allow the call.", "Use a token with the role that the message names."
    ),
    "API_PLACE_REFUSED": CodeEntry(
        ErrorKind.INVALID,
        "The call names a host that the server does not go by, or comes from a foreign web page.",
        "Call it by its address, or add the name to api.hosts, or the origin to api.origins, in the server's configuration.",
    ),
    "API_BODY_REFUSED": CodeEntry(
        ErrorKind.INVALID,
        "The body of the call is too large, too slow or no JSON.",
        "Send a JSON object, with Content-Type application/json.",
    ),
    "API_BUSY": CodeEntry(
        ErrorKind.TRANSIENT, "Too many calls at once, or within a second.", "Try again later; see api.requests-per-second."
    ),
    "TOKEN_UNKNOWN": CodeEntry(ErrorKind.INVALID, "No token has this id.", "See `penstock token list`."),
    "SINK_FORBIDDEN": CodeEntry(
        ErrorKind.INVALID,
        "The server's configuration does not let a caller use this target or parameter.",
        "Name a connection of the server, as connection://lake/prefix, or have its operator extend sink-allow or [connections].",
    ),
    "VERIFY_MISMATCH": CodeEntry(
        ErrorKind.CORRUPT,
        "Replayed files differ from the upstream.",
        "Run `penstock verify FEED --repair --wait`: what differs is delivered. Keep both sides and report keys that stay different.",
    ),
    "VERIFY_BUSY": CodeEntry(ErrorKind.TRANSIENT, "Another verification is under way.", "Run it again when the other one has ended."),
    "CHECKPOINT_MISSING": CodeEntry(
        ErrorKind.TRANSIENT, "The target has no checkpoint yet.", "Run it again once the feed has published `metadata`."
    ),
    "FILE_MALFORMED": CodeEntry(
        ErrorKind.CORRUPT, "A file of the storage layout does not parse.", "The message names file and line; restore the file."
    ),
    "JAVA_MISSING": CodeEntry(
        ErrorKind.BLOCKED,
        "No Java that Spark runs on was found.",
        "Install Java 17 or 21 (Debian and Ubuntu: openjdk-17-jre-headless or openjdk-21-jre-headless), or set JAVA_HOME to one.",
    ),
    "SPARK_UNAVAILABLE": CodeEntry(
        ErrorKind.BLOCKED, "Spark did not start.", "Check the master and the memory of the machine; the message of the JVM is above."
    ),
    "SPARK_LOST": CodeEntry(
        ErrorKind.BLOCKED,
        "Spark's JVM ended under a running server, which ends too: its feeds go on where they are when it is started again.",
        "Start it again, best by a supervisor such as systemd; look whether the machine ran out of memory.",
    ),
    "TICKET_INVALID": CodeEntry(ErrorKind.INVALID, "A Flight ticket is malformed or not signed by this server.", "Plan again."),
    "CANCELLED": CodeEntry(ErrorKind.TRANSIENT, "The operation was cancelled before it ended.", "Run it again."),
    "MISSING_DEPENDENCY": CodeEntry(ErrorKind.INVALID, "An optional dependency is not installed.", "Install the named extra."),
    "OUTPUT_FAILED": CodeEntry(
        ErrorKind.BLOCKED,
        "What a verb writes does not arrive: the disk is full, or broken.",
        "Make room where standard output or the file goes, or send it elsewhere, then run it again.",
    ),
    "INTERNAL": CodeEntry(ErrorKind.BUG, "Penstock broke one of its own rules.", "Report it with the log."),
}
