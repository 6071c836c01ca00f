"""The null target: takes everything and keeps nothing, so that what is left is the engine's own cost."""

SCHEMES = ("null",)
