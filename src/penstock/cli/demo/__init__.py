"""The demo: a database under load, a server, a feed, and what is shown of them."""
