"""Objects of the store: files, manifests, merges, retained history."""
