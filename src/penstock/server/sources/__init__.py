"""Captured sources: everything that a server has for one source, from its upstream to its doubts."""
