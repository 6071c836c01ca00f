"""Database servers for tests: how they are started and written to, and what they answer themselves."""
