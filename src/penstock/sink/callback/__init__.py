"""A Python callable as a target: changes of each table, in order, for notebooks and programs that capture in their own process."""

SCHEMES = ("python",)
