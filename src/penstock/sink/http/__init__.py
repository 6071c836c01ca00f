"""The HTTP target: changes as JSON batches, posted to an address that takes them."""

SCHEMES = ("http+json", "https+json")
