"""The meta database: subscriptions, ownership, progress."""
