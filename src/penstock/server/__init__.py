"""The server process: API, claiming and supervising subscriptions."""
