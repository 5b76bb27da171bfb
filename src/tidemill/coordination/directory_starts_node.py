"""The node that keeps which data directories a broker last used. Apache Kafka has none such.

See :mod:`tidemill.server.directory_starts`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.coordination.encoding import NodeFormatError, read_json, write_json


class DirectoryStartsNode:
    """/tidemill/directory_starts/N: the number of the last start of broker N with each of its directories."""

    @staticmethod
    def path(broker_id: int) -> str:
        """The node of a broker."""
        return f"/tidemill/directory_starts/{broker_id}"

    @staticmethod
    def encode(starts: Mapping[str, int]) -> bytes:
        """Version 1: by the id of each directory, as ``meta.properties`` has it, its number."""
        return write_json({"version": 1, "directories": dict(sorted(starts.items()))})

    @staticmethod
    def decode(path: str, data: bytes) -> dict[str, int]:
        """The numbers by id. Raises NodeFormatError."""
        found = read_json(path, data).get("directories")
        if not isinstance(found, dict) or not all(type(one) is int for one in found.values()):
            raise NodeFormatError(path, data, "directories does not map ids to numbers")
        return {str(one): number for one, number in found.items()}
