"""The storage sink: files in the open layout, on any object store."""
