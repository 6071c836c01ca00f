"""The feeds of a server: created, claimed, captured, run and kept running."""
