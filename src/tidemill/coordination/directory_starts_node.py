"""The node with the data directories that a broker last used. Apache Kafka has no such node.

See :mod:`tidemill.server.stale_directories`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.coordination.encoding import NodeFormatError, read_json, write_json


class DirectoryStartsNode:
    """/tidemill/directory_starts/N: for each directory of broker N, the number of its last start with it."""

    @staticmethod
    def path(broker_id: int) -> str:
        """Returns the path of a broker's node."""
        return f"/tidemill/directory_starts/{broker_id}"

    @staticmethod
    def encode(starts: Mapping[str, int]) -> bytes:
        """Encodes version 1: the number by the id of each directory, as in ``meta.properties``."""
        return write_json({"version": 1, "directories": dict(sorted(starts.items()))})

    @staticmethod
    def decode(path: str, data: bytes) -> dict[str, int]:
        """Returns the numbers by id. Raises NodeFormatError."""
        found = read_json(path, data).get("directories")
        if not isinstance(found, dict) or not all(type(number) is int for number in found.values()):
            raise NodeFormatError(path, data, "directories does not map ids to numbers")
        return {str(identifier): number for identifier, number in found.items()}
