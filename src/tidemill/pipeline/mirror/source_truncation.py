"""Whether a source that ends before what was copied of it has lost records, or does not report them yet.

Only records below the high watermark are copied, and each replica of the ISR has them. A new leader of the
ISR reports a lower high watermark until its followers have fetched, or have left the ISR
(``replica.lag.time.max.ms``, 30 s); its log end is not lower. A leader whose log ends before the copy was not
in the ISR: the source has lost records. Only the metadata can be wrong then: a deposed leader that does not
know its successor yet has an older log.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from tidemill.client.range_reader import RangeReader
from tidemill.model.types import TopicPartition

LOG_END_S: Final = 5.0
"""How long the leaders are waited for that are asked for their log ends."""
SHORTER_S: Final = 30.0
"""How long the log of a leader ends before the copy until the source counts as shorter. A deposed leader
learns of its successor within its session with ZooKeeper or its controller (18 s and 9 s by default)."""
SHORTER_WITHOUT_LOG_END_S: Final = 90.0
"""The same time if the log end is unknown (brokers without leader epochs in their metadata, Apache Kafka
before 2.1, or a client without the right to ask): three times the 30 s after which a follower leaves the
ISR."""


class ShorterSources:
    """The partitions of a source that end before what was copied of them. The reader is the caller's."""

    def __init__(self, reader: RangeReader) -> None:
        self._reader = reader
        self._since_s: dict[TopicPartition, float] = {}

    def lost(self, shorter: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """Returns the partitions that have lost records among all that are shorter now.

        ``shorter`` has the offset up to which each was copied. The others are to be compared again. A leader
        that does not answer now delays the result until a comparison in which it does, by 60 s at most: the
        times begin when a partition was found shorter first.
        """
        now = time.monotonic()
        self._since_s = {item: self._since_s.get(item, now) for item in shorter}
        if not shorter:
            return set()
        log_ends = self._reader.leader_log_ends(shorter, LOG_END_S).offsets
        lost = set()
        for item, copied in shorter.items():
            if log_ends.get(item, -1) >= copied:
                self._since_s[item] = now
                continue
            patience_s = SHORTER_S if item in log_ends else SHORTER_WITHOUT_LOG_END_S
            if now - self._since_s[item] >= patience_s:
                lost.add(item)
        return lost
