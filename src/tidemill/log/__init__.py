"""Segments, indexes, the log of a partition, recovery, retention, producer state."""
