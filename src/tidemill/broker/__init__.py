"""The Kafka APIs of a broker: the parts of a broker, and the dispatch of requests to their handlers."""
