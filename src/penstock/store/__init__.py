"""The event store: a versioned columnar table per span, its changes handle and its Flight service."""
