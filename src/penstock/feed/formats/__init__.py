"""The public Spark formats."""
