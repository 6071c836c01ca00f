"""The store for other processes, over Arrow Flight."""
