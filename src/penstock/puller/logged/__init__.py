"""Capture from a source with one log."""
