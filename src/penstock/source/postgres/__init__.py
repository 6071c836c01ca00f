"""The PostgreSQL upstream: logical replication with ``pgoutput``, decoded in columns; snapshots by COPY under an exported snapshot."""
