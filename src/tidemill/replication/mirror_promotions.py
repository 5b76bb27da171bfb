"""Ends the mirrors that are promoted, in the partitions that this broker leads.

A promotion begins with the setting ``tidemill.mirror.state=promoting``, and has ended in a partition once its
log has the end of the mirror. If the leader changes in between, the next one continues.
"""

from __future__ import annotations

import logging

from tidemill.log.log_config import LogConfig
from tidemill.model.errors import KafkaError, StorageError
from tidemill.model.event_loop_slices import yield_to_loop
from tidemill.model.mirror_state import PROMOTING
from tidemill.model.system_interfaces import Clock
from tidemill.replication.hosted_topics import TopicEntry, TopicTable
from tidemill.replication.partition import Partition

logger = logging.getLogger("tidemill.replication")


class MirrorPromotions:
    """The topics that are promoted."""

    def __init__(self, topics: TopicTable, clock: Clock) -> None:
        self.topics = topics
        self.clock = clock
        self.entries: dict[str, TopicEntry] = {}
        """The topics in the state ``promoting``, by name."""
        self._reported: dict[Partition, str] = {}
        """The problem of each partition that was logged last."""

    def apply_settings(self, entry: TopicEntry, config: LogConfig) -> None:
        """Applies the settings of a topic."""
        if config.mirror_state == PROMOTING:
            self.entries[entry.name] = entry
        else:
            self.entries.pop(entry.name, None)

    async def run(self) -> None:
        """Ends each partition as far as possible now. The broker calls it periodically."""
        self._reported = {one: text for one, text in self._reported.items() if one.is_promoting}
        for name, entry in list(self.entries.items()):
            if self.topics.by_name.get(entry.name_bytes) is not entry:
                del self.entries[name]
                continue
            for partition in [one for one in entry.partitions if one is not None and one.is_leader]:
                await self._promote(partition)
                await yield_to_loop()

    async def _promote(self, partition: Partition) -> None:
        try:
            while not partition.promote(self.clock.wall_ms()):
                await yield_to_loop()
        except StorageError as problem:
            partition.events.on_storage_error(partition, problem)
        except KafkaError as problem:
            if self._reported.get(partition) != str(problem):
                self._reported[partition] = str(problem)
                name = f"{partition.topic}-{partition.index}"
                logger.info("the mirror %s is not promoted yet: %s", name, problem)
