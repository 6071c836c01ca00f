"""Whole paths without Spark."""
