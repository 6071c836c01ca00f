"""The Kafka target: a message for each change, exactly once through Kafka's transactions."""

SCHEMES = ("kafka",)
