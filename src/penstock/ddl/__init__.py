"""The text of DDLs: read and written."""
