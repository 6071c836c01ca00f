"""The MySQL target: tables of a MySQL or MariaDB server, changed in transactions that carry their own progress."""

SCHEMES = ("mysql", "mariadb")
