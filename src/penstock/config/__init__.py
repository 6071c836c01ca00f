"""Loads and validates the tree of settings that the other packages declare."""
