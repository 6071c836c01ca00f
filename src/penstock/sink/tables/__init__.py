"""What targets that are tables of a database share: changes folded per key, applied in transactions that carry their own progress."""
