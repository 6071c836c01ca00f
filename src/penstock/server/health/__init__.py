"""Health of a server: its components, its feeds, and what is wrong with them."""
