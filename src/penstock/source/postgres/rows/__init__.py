"""Rows of the log and of snapshots: cells into columns, keys, transactions."""
