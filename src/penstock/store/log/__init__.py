"""The write-ahead log and the records beside it."""
