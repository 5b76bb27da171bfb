"""Tidemill: a distributed commit log that speaks the Kafka protocol and keeps Kafka's files."""

from tidemill import _mode

__version__ = "0.1.0"

_mode.select()
