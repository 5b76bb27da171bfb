"""Counts leader elections, and warns of leaders that may lack committed records."""

from __future__ import annotations

import logging
from collections.abc import Generator

from tidemill.controller.leader_election import NO_LOG_ENDS, LogEnds, Losses
from tidemill.coordination.cluster_image import Delta
from tidemill.coordination.topic_image import PartitionImage
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE
from tidemill.model.types import NO_BROKER, TopicPartition

logger = logging.getLogger(__name__)


class ElectionReport:
    """The elections by this broker as the controller, since its start."""

    def __init__(self) -> None:
        self.elections = 0
        self.unclean_elections = 0
        """Elections that may have lost records."""

    def record_in_slices(
        self, delta: Delta, losses: Losses, ends: LogEnds = NO_LOG_ENDS
    ) -> Generator[None, None, None]:
        """Counts the elections in ``delta``, and logs those that may have lost records.

        ``losses`` and ``ends`` are the reported losses and the log ends by which the leaders were elected.
        Pauses between many partitions.
        """
        for old, new in delta.changed:
            for count, (before, after) in enumerate(zip(old.partitions, new.partitions, strict=False), 1):
                if count % ITEMS_PER_SLICE == 0:
                    yield
                if before is after:
                    continue
                self.elections += before.leader != after.leader >= 0
                if may_lack_records(new.name, before, after, losses):
                    self.unclean_elections += 1
                    key = TopicPartition(new.name, after.partition)
                    logger.warning("%s", unclean_election_text(key, before, after, losses, ends))


def may_lack_records(topic: str, before: PartitionImage, after: PartitionImage, losses: Losses) -> bool:
    """Whether the new leader of a partition may lack committed records."""
    leader = after.leader
    if leader == NO_BROKER or after.leader_epoch == before.leader_epoch or before.partition_epoch < 0:
        return False
    is_lost = leader in losses and losses[leader].is_lost(topic, after.partition)
    return is_lost or leader not in (*before.isr, *before.elr)


def unclean_election_text(
    key: TopicPartition, before: PartitionImage, after: PartitionImage, losses: Losses, ends: LogEnds
) -> str:
    """The warning for an operator about a leader that may lack committed records."""
    known = ends.get(key, {})
    own = known.get(after.leader)
    reach = f" Its log ends at offset {own.offset}, in leader epoch {own.epoch}." if own is not None else ""
    others = ", ".join(
        f"broker {broker} ends at {end.offset} in epoch {end.epoch}"
        for broker, end in sorted(known.items())
        if broker != after.leader
    )
    complete = [
        broker
        for broker in after.replicas
        if (broker in before.isr or broker in before.elr)
        and not (broker in losses and losses[broker].is_lost(key.topic, key.partition))
    ]
    why = (
        f"brokers {complete} have all committed records but are unavailable"
        if complete
        else "no replica has all of them"
    )
    last = before.leader if before.leader >= 0 else before.last_known_leader
    return (
        f"{key.topic}-{key.partition}: broker {after.leader} was elected in leader epoch "
        f"{after.leader_epoch} and may lack committed records, which are lost then: {why} (last leader: "
        f"{f'broker {last}' if last >= 0 else 'unknown'}).{reach}"
        f"{' Other replicas: ' + others + '.' if others else ''}"
    )
