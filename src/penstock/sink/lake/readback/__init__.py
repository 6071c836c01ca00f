"""What a lake holds, read back: for verification, and for a feed whose history is lost."""
