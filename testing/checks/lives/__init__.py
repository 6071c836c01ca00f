"""Random lives of tables on a real server, captured to files, and what is compared with the server afterwards."""
