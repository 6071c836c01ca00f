"""Region workers, event processor, frontier, span pipeline, and the log service made of them."""
