"""Reading: ordered changes, snapshots, windows."""
