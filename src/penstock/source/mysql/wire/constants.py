"""Numbers of the replication protocol: event types, column types of table maps, and the wire kinds that the row kernel knows.

A wire kind is how a field stands in a row image and how it is written to its column; a table map's type and meta give one. Kernels take
them as arrays, so one compiled kernel serves every table. Runs anywhere.
"""

from __future__ import annotations

HEADER_BYTES = 19
"""Of every event: timestamp u32, type u8, server id u32, size u32, end position u32, flags u16."""
KIND_AT, SIZE_AT, END_AT, FLAGS_AT = 4, 9, 13, 17
"""Where these stand in the header."""

QUERY = 2
STOP = 3
ROTATE = 4
INTVAR = 5
APPEND_BLOCK = 9
DELETE_FILE = 11
RAND = 13
USER_VAR = 14
FORMAT_DESCRIPTION = 15
XID = 16
BEGIN_LOAD_QUERY = 17
EXECUTE_LOAD_QUERY = 18
TABLE_MAP = 19
# The codes of updates and deletes follow those of writes, here and in every later version.
WRITE_ROWS_V1 = 23
UPDATE_ROWS_V1 = 24
DELETE_ROWS_V1 = 25
INCIDENT = 26
HEARTBEAT = 27
IGNORABLE = 28
ROWS_QUERY = 29
WRITE_ROWS_V2 = 30
GTID = 33
ANONYMOUS_GTID = 34
PREVIOUS_GTIDS = 35
TRANSACTION_CONTEXT = 36
VIEW_CHANGE = 37
XA_PREPARE = 38
PARTIAL_UPDATE_ROWS = 39
TRANSACTION_PAYLOAD = 40
HEARTBEAT_V2 = 41
GTID_TAGGED = 42
ANNOTATE_ROWS = 160
BINLOG_CHECKPOINT = 161
MARIADB_GTID = 162
GTID_LIST = 163
START_ENCRYPTION = 164
QUERY_COMPRESSED = 165
WRITE_ROWS_COMPRESSED_V1 = 166
DELETE_ROWS_COMPRESSED_V1 = 168
WRITE_ROWS_COMPRESSED = 169

DUMMY_TABLE_ID = 0x00FFFFFF
"""The table id of a rows event that only ends a statement."""

# Column types as table maps name them.
TYPE_TINY = 1
TYPE_SHORT = 2
TYPE_LONG = 3
TYPE_FLOAT = 4
TYPE_DOUBLE = 5
TYPE_TIMESTAMP = 7
TYPE_LONGLONG = 8
TYPE_INT24 = 9
TYPE_DATE = 10
TYPE_TIME = 11
TYPE_DATETIME = 12
TYPE_YEAR = 13
TYPE_NEWDATE = 14
TYPE_VARCHAR = 15
TYPE_BIT = 16
TYPE_TIMESTAMP2 = 17
TYPE_DATETIME2 = 18
TYPE_TIME2 = 19
TYPE_BLOB_COMPRESSED = 140
TYPE_VARCHAR_COMPRESSED = 141
TYPE_VECTOR = 242
TYPE_JSON = 245
TYPE_NEWDECIMAL = 246
TYPE_ENUM = 247
TYPE_SET = 248
TYPE_TINY_BLOB = 249
TYPE_MEDIUM_BLOB = 250
TYPE_LONG_BLOB = 251
TYPE_BLOB = 252
TYPE_VAR_STRING = 253
TYPE_STRING = 254
TYPE_GEOMETRY = 255

# Wire kinds: fixed ones first, then those that give text or bytes.
W_INT1 = 1
W_INT2 = 2
W_INT3 = 3
W_INT4 = 4
W_INT8 = 5
W_YEAR = 6
W_BITS = 7
W_ENUM = 8
W_SET = 9
W_BYTES = 10
"""A length of ``a`` bytes, then that many; also CHAR, VARCHAR, TEXT, BLOB, JSON, GEOMETRY."""
W_PADDED = 11
"""As W_BYTES, filled with zero bytes to ``b``: BINARY(n), whose trailing zeros the log leaves out."""
W_DECIMAL = 12
W_DATE = 13
W_DATETIME = 14
W_TIMESTAMP = 15
W_TIME = 16
W_OLD_DATETIME = 17
W_OLD_TIMESTAMP = 18
W_OLD_TIME = 19

# Forms: what the bytes of a text or byte column are, where they are not what the server shows.
F_PLAIN = 0
F_JSON = 1
F_UUID = 2
F_INET4 = 3
F_INET6 = 4
F_COMPRESSED = 5
F_VECTOR = 6

FIXED_MAX = W_SET
"""Kinds up to this one have a fixed width in their column."""

SIZES = {W_INT1: 1, W_INT2: 2, W_INT3: 3, W_INT4: 4, W_INT8: 8, W_YEAR: 1, W_DATE: 3, W_OLD_DATETIME: 8, W_OLD_TIMESTAMP: 4, W_OLD_TIME: 3}
"""Bytes of a kind in an image, where they are always so many."""
TEMPORAL_BASE = {W_DATETIME: 5, W_TIMESTAMP: 4, W_TIME: 3}
"""Bytes of a kind before those of its fraction."""
WIDTHS = {W_INT1: 1, W_INT2: 2, W_INT3: 4, W_INT4: 4, W_INT8: 8, W_YEAR: 2, W_BITS: 8, W_ENUM: 2, W_SET: 8}
"""Bytes of a value in its Arrow column, of kinds that become numbers."""
TEXT_MAX = {W_DATE: 10, W_DATETIME: 26, W_TIMESTAMP: 26, W_TIME: 17, W_OLD_DATETIME: 19, W_OLD_TIMESTAMP: 19, W_OLD_TIME: 10}
"""Bytes of the longest text that a kind becomes."""
