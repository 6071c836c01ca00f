"""In-memory twins of the seams."""
