"""Filters: which changes of a feed's tables reach the target, and in what shape."""
