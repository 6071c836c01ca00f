"""Capture from a source of ranges: region workers, event processor, matcher."""
