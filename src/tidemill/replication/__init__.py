"""Partition state, the high watermark, and what waits for it."""
