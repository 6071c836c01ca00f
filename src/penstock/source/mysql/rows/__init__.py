"""Rows of the log and of snapshots: images into columns, keys, folding."""
