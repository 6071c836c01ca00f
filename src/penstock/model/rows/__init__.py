"""A row of a table: its key, its elements of ENUM and SET, its shape under another version of the table."""
