"""The control records of a query up to an offset, as compaction leaves them.

A process that has read the control partition before continues at the record that it has read last, and so
each task reads only the records that were appended since. Both ways give the same :class:`BatchState`: a
compacted topic may have lost each record that is removed here, and none of them changes a decision.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.pipeline.exactly_once.control_records import ControlRecord, StoredRecord


class CompactedRecords:
    """The last record of each key that no tombstone has deleted, in the order of the offsets."""

    def __init__(self) -> None:
        self._records: dict[str, StoredRecord] = {}

    def add(self, offset: int, record_id: str, record: ControlRecord | None) -> None:
        """Adds the next record of the query, or with None a tombstone."""
        # A record that replaces another one is now the last.
        self._records.pop(record_id, None)
        if record is not None:
            self._records[record_id] = StoredRecord(offset, record_id, record)

    @property
    def stored(self) -> Iterable[StoredRecord]:
        """The records in the order of their offsets."""
        return self._records.values()
