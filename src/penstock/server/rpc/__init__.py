"""The gRPC side of a server: subscribing a table as the cdc-server seed has it."""
