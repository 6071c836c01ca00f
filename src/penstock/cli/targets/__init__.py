"""Verbs of storage targets: looking at their files, applying them to a database."""
