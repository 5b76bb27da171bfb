"""The node that keeps which data directories of a broker are not to be trusted. Apache Kafka has none such.

See :mod:`tidemill.log.failed_sync_marks`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.coordination.encoding import NodeFormatError, read_json, write_json


class DistrustedNode:
    """/tidemill/distrusted_directories/N: the directories of broker N in which a sync failed."""

    @staticmethod
    def path(broker_id: int) -> str:
        """The node of a broker."""
        return f"/tidemill/distrusted_directories/{broker_id}"

    @staticmethod
    def encode(ids: Iterable[str]) -> bytes:
        """Version 1: the ids of the directories, as ``meta.properties`` has them."""
        return write_json({"version": 1, "directories": sorted(ids)})

    @staticmethod
    def decode(path: str, data: bytes) -> frozenset[str]:
        """The ids."""
        ids = read_json(path, data).get("directories")
        if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
            raise NodeFormatError(path, data, "directories is no list of ids")
        return frozenset(ids)
