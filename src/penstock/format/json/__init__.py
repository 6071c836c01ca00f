"""Canal-JSON and Debezium JSON: writing, reading."""
