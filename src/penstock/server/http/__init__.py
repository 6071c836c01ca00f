"""The HTTP side of a server: listener, routes, and how feeds and tables are shown."""
