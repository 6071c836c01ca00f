"""Kits by which the contract suite of sinks drives each kind of target: one module for each."""
