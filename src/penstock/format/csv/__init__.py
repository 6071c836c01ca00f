"""CSV: dialect, writing, reading."""
