"""The console target: the last changes of each window as lines, for people who watch."""

SCHEMES = ("console",)
