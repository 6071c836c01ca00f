"""Upstreams: one folder each, all behind ``penstock.source.contract``."""
