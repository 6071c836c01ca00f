"""Verbs of feeds: before one begins, while it runs, and what it wrote."""
