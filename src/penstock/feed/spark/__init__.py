"""Spark's own processes: session, workers, classes."""
