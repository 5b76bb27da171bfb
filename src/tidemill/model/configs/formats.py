"""Message formats as configurations name them: by the Kafka version that brought them.

=====================  =====  =================================================
version                magic  brought
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
"""Release: how many inter-broker versions (``-IV0`` and up) it has."""

MESSAGE_FORMAT = "message format"
"""What a key that names one is allowed, in the language of :class:`tidemill.model.configs.keys.Key`."""
ALLOWED_TEXT = "a Kafka version, 0.8.0 to 3.9, as 0.9.0, 0.10.2 or 3.0-IV1"

_PATTERN = re.compile(r"(0\.\d+\.\d+|[1-9]\.\d+)(?:(?:\.\d+)*|-IV(\d))", re.ASCII)


def is_format_version(text: str) -> bool:
    """Whether ``text`` names a message format."""
    found = _PATTERN.fullmatch(text)
    if found is None or found[1] not in _INTER_BROKER_VERSIONS:
        return False
    return found[2] is None or int(found[2]) < _INTER_BROKER_VERSIONS[found[1]]


def magic_of(version: str) -> int:
    """The magic byte of the format that ``version`` stores: 0, 1 or 2. ConfigError when it is none."""
    if not is_format_version(version):
        raise ConfigError(f"message format {version}: allowed is {ALLOWED_TEXT}")
    if version.startswith(("0.8.", "0.9.")):
        return 0
    return 1 if version.startswith("0.10.") else 2
