"""Bytes of the server: the binlog stream, its packets, events and table maps."""
