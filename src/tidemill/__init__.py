"""Tidemill: a distributed commit log that speaks the Kafka protocol and keeps Kafka's files."""

from tidemill import _build_mode

__version__ = "0.1.0"

_build_mode.select()
