"""Reading a storage target back: reader, lineage, replay, inspection."""
