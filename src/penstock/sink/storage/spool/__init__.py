"""The spool between encoders and writers: memory and disk."""
