"""The metrics of all processes: their names, and the families that a scrape is answered with."""
