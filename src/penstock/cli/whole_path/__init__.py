"""The verbs that carry a database to files in one command, on this machine."""
