"""From change rows to the keys, values and partitions of messages."""
