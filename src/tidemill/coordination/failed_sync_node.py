"""The node with the data directories of a broker in which a sync failed. Apache Kafka has no such node.

See :mod:`tidemill.log.failed_sync_marks`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.coordination.encoding import NodeFormatError, read_json, write_json


class DistrustedNode:
    """/tidemill/distrusted_directories/N: the directories of broker N in which a sync failed."""

    @staticmethod
    def path(broker_id: int) -> str:
        """Returns the path of a broker's node."""
        return f"/tidemill/distrusted_directories/{broker_id}"

    @staticmethod
    def encode(ids: Iterable[str]) -> bytes:
        """Encodes version 1: the ids of the directories, as in ``meta.properties``."""
        return write_json({"version": 1, "directories": sorted(ids)})

    @staticmethod
    def decode(path: str, data: bytes) -> frozenset[str]:
        """Returns the ids. Raises NodeFormatError."""
        ids = read_json(path, data).get("directories")
        if not isinstance(ids, list) or not all(isinstance(identifier, str) for identifier in ids):
            raise NodeFormatError(path, data, "directories is not a list of ids")
        return frozenset(ids)
