"""Windows: planned, read, delivered, committed."""
