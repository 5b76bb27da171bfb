"""Message formats, which configurations name by the Kafka version that introduced them.

=====================  =====  =================================================
version                magic  introduced
=====================  =====  =================================================
0.8.0 to 0.9.0         0      keys, values, compressed sets
0.10.0-IV0 to 0.10.2   1      timestamps (KIP-32), relative inner offsets (KIP-31)
0.11.0-IV0 and later   2      batches, headers, producers' sequences (KIP-98)
=====================  =====  =================================================

A version may be written with all its parts (``0.9.0.1``, ``2.8.1``); an inter-broker version (``-IV1``) only
where Kafka has it. Source: Apache Kafka 2.8 ``ApiVersion.scala``, 3.9 ``MetadataVersion.java``.
"""

from __future__ import annotations

import re

from tidemill.model.configs.config_def import Validator
from tidemill.model.errors import ConfigError

_INTER_BROKER_VERSIONS = {
    "0.8.0": 0,
    "0.8.1": 0,
    "0.8.2": 0,
    "0.9.0": 0,
    "0.10.0": 2,
    "0.10.1": 3,
    "0.10.2": 1,
    "0.11.0": 3,
    "1.0": 1,
    "1.1": 1,
    "2.0": 2,
    "2.1": 3,
    "2.2": 2,
    "2.3": 2,
    "2.4": 2,
    "2.5": 1,
    "2.6": 1,
    "2.7": 3,
    "2.8": 2,
    "3.0": 2,
    "3.1": 1,
    "3.2": 1,
    "3.3": 4,
    "3.4": 1,
    "3.5": 3,
    "3.6": 3,
    "3.7": 5,
    "3.8": 1,
    "3.9": 1,
}
"""Number of inter-broker versions (``-IV0`` and up) of each release."""

_PATTERN = re.compile(r"(0\.\d+\.\d+|[1-9]\.\d+)(?:(?:\.\d+)*|-IV(\d))", re.ASCII)


def is_format_version(text: str) -> bool:
    """Returns whether ``text`` names a message format."""
    found = _PATTERN.fullmatch(text)
    if found is None or found[1] not in _INTER_BROKER_VERSIONS:
        return False
    return found[2] is None or int(found[2]) < _INTER_BROKER_VERSIONS[found[1]]


MESSAGE_FORMAT = Validator(is_format_version, "a Kafka version, 0.8.0 to 3.9, as 0.9.0, 0.10.2 or 3.0-IV1")
"""The allowed values of a message format key."""


def magic_of(version: str) -> int:
    """Returns the magic byte of the format ``version``: 0, 1 or 2. Raises ConfigError if it is unknown."""
    if not is_format_version(version):
        raise ConfigError(f"message format {version}: allowed is {MESSAGE_FORMAT.text}")
    if version.startswith(("0.8.", "0.9.")):
        return 0
    return 1 if version.startswith("0.10.") else 2
