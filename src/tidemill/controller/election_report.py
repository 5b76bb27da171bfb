"""Counts the leaders that the controller elects, and warns of those that may lack committed records."""

from __future__ import annotations

import logging

from tidemill.controller.elections import NO_LOG_ENDS, LogEnds, Losses
from tidemill.coordination.image import NO_BROKER, Delta, PartitionImage, TopicImage
from tidemill.model.types import TopicPartition

logger = logging.getLogger(__name__)


class ElectionReport:
    """The elections of this broker as the controller, since its start."""

    def __init__(self) -> None:
        self.elections = 0
        self.unclean_elections = 0
        """Those that may have lost records."""

    def note(self, delta: Delta, losses: Losses, ends: LogEnds = NO_LOG_ENDS) -> None:
        """Takes in what was written: by these reported losses and log ends leaders were elected."""
        for old, new in delta.changed:
            for before, after in zip(old.partitions, new.partitions, strict=False):
                self.elections += before is not after and before.leader != after.leader >= 0
            for number in unclean_elections(old, new, losses):
                self.unclean_elections += 1
                key = TopicPartition(new.name, number)
                before, after = old.partitions[number], new.partitions[number]
                logger.warning("%s", unclean_election_text(key, before, after, losses, ends))


def unclean_elections(before: TopicImage, after: TopicImage, losses: Losses) -> list[int]:
    """The partitions that got a leader which may lack committed records."""
    found = []
    for old, new in zip(before.partitions, after.partitions, strict=False):
        if old is new or new.leader == NO_BROKER or new.leader_epoch == old.leader_epoch:
            continue
        lost = new.leader in losses and losses[new.leader].is_lost(after.name, new.partition)
        if old.partition_epoch >= 0 and (lost or new.leader not in (*old.isr, *old.elr)):
            found.append(new.partition)
    return found


def unclean_election_text(
    key: TopicPartition, before: PartitionImage, after: PartitionImage, losses: Losses, ends: LogEnds
) -> str:
    """What an operator has to know of a leader that may lack committed records."""
    known = ends.get(key, {})
    own = known.get(after.leader)
    reach = f" Its log ends at offset {own.offset}, in leader epoch {own.epoch}." if own is not None else ""
    others = ", ".join(
        f"broker {broker} ends at {end.offset} in epoch {end.epoch}"
        for broker, end in sorted(known.items())
        if broker != after.leader
    )
    whole = [
        broker
        for broker in after.replicas
        if (broker in before.isr or broker in before.elr)
        and not (broker in losses and losses[broker].is_lost(key.topic, key.partition))
    ]
    why = f"brokers {whole} have all of them, and cannot lead" if whole else "no replica has all of them"
    last = before.leader if before.leader >= 0 else before.last_known_leader
    return (
        f"{key.topic}-{key.partition}: broker {after.leader} leads in epoch {after.leader_epoch}, and may "
        f"lack committed records, which are lost then: {why} (last leader: "
        f"{f'broker {last}' if last >= 0 else 'not known'}).{reach}"
        f"{' Of the others, ' + others + '.' if others else ''}"
    )
