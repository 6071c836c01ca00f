"""A Kafka broker and a schema registry for tests."""
