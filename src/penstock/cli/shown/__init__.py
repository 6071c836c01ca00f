"""What the command line shows while it works: logs, progress, samples."""
