"""Bytes of the server: connection, replication stream, pgoutput messages."""
