"""Delta Lake as a target: tables by delta-rs, one version per window."""

SCHEMES = ("delta+file", "delta+s3", "delta+s3a", "delta+gs", "delta+gcs", "delta+az", "delta+azure", "delta+azblob")
