"""Simulations, checkers, strategies."""
