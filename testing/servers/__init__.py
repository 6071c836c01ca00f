"""Real servers for tests, on loopback."""
