"""A storage target as a place: its settings and its objects."""
