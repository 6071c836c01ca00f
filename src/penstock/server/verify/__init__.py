"""Verification: the rows of a target, or of the event store, against those of the upstream."""
