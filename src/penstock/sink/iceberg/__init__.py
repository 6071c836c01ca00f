"""Apache Iceberg as a target: tables by pyiceberg in a SQL or REST catalog, one snapshot per window."""

SCHEMES = (
    *("iceberg+file", "iceberg+s3", "iceberg+s3a", "iceberg+gs", "iceberg+gcs"),
    *("iceberg+az", "iceberg+azure", "iceberg+azblob"),
)
