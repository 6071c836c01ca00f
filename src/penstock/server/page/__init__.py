"""The web page of a server: files that it serves itself, and their routes."""
