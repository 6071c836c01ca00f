"""MariaDB and MySQL as a source: the binlog read as raw bytes and decoded by kernels into columns."""
