"""The PostgreSQL target: tables of a PostgreSQL database, changed in transactions that carry their own progress."""

SCHEMES = ("postgres", "postgresql")
