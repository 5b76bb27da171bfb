"""Imports and exports data directories of Apache Kafka: reads and writes the metadata beside the logs."""
