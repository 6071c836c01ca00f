"""The storage layout: paths, index, schema files, checkpoint."""
