"""The storage sink: files in the open layout, on any object store."""

SCHEMES = ("file", "s3", "s3a", "gs", "gcs", "az", "azure", "azblob", "memory")
