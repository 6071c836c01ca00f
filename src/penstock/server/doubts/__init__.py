"""Doubted tables: which there are, by what rule they are read again, and the loop that does it."""
