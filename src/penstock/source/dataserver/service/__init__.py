"""The embedded database as a server: event feed, pulls, wire."""
