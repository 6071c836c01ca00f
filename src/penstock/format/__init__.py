"""The storage layout and its protocols: paths, schema files, index files, CSV."""
