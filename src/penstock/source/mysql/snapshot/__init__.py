"""Snapshots: reading tables by key ranges."""
