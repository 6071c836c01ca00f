"""Targets: one folder each, all behind ``penstock.sink.contract``."""
