"""Verification: the rows of a target against those of its upstream."""
