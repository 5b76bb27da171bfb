"""The Kafka protocol without I/O: primitives, headers, the messages of every API."""
