"""The embedded database itself: ranges, schemas, partitions."""
