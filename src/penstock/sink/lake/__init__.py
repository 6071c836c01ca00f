"""What tables of a lake have in common, whatever their format: Parquet by tasks, one table version per window, the checkpoint in it."""
