"""Benchmarks: speed and memory as ratios to a baseline measured in the same run. ``make bench NAME=feed`` runs one."""
