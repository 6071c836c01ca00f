"""Bootstrap and re-snapshot."""
