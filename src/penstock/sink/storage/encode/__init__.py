"""From change batches to the bytes of files: shards, encoders, cuts."""
