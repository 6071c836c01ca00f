"""Capture on executors: receivers that capture ranges of a source, and how the server hands them out and plans over them."""
