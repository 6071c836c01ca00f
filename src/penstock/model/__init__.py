"""Values that every other package speaks: timestamps, tables, spans, change batches, DDL events, errors, clock.

Lowest layer: imports nothing from Penstock. Runs anywhere.
"""
