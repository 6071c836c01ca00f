"""Verbs of servers: running one, its event store, its callers, what its executors need."""
