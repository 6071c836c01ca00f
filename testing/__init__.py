"""In-memory twins of the seams, fault scripts, simulated clock. For tests only."""
