"""Spark clusters for tests: several machines on one, and what keeps them busy."""
