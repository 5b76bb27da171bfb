"""Partition state, the high watermark, and delayed operations."""
