"""The Kafka protocol without I/O: primitives, headers, and the messages of every API."""
