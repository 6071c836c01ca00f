"""Settings: values as users write them, trees of dataclasses built from them, and hiding what is secret in them."""
