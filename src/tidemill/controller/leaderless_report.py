"""Logs partitions without a leader, the brokers that they wait for, and the election of their leaders.

Each change is one line: the failure of a broker may leave thousands of partitions without a leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Final

from tidemill.controller.leader_election import CHANGES_PER_SLICE, PolicyOf, recovery_candidates
from tidemill.coordination.cluster_image import ClusterImage, Delta
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE, run_in_slices
from tidemill.model.types import NO_BROKER, TopicPartition

logger = logging.getLogger(__name__)

NAMES_MAX: Final = 3
"""The number of partitions that a line names. It gives the number of the others."""
CLUSTER_START_S: Final = 30.0
"""How long the first controller of a starting cluster waits for other brokers before it reports."""


class _Counted:
    """A number of partitions, the names of the first ones, and the brokers that they concern."""

    def __init__(self) -> None:
        self.count = 0
        self._names: list[str] = []
        self.brokers: set[int] = set()

    def add(self, topic: str, partition: PartitionImage, brokers: list[int]) -> None:
        self.count += 1
        if self.count <= NAMES_MAX:
            self._names.append(str(TopicPartition(topic, partition.partition)))
        self.brokers.update(brokers)

    def __str__(self) -> str:
        more = self.count - len(self._names)
        return ", ".join(self._names) + (f" and {more} more" if more else "")

    @property
    def count_text(self) -> str:
        return "1 partition has" if self.count == 1 else f"{self.count} partitions have"


def awaited_brokers(partition: PartitionImage) -> list[int]:
    """The brokers that can lead a leaderless partition: one of them must return.

    These are the replicas in the ISR and the ELR, else the last leader, else the replicas that have not
    reported a loss.
    """
    eligible = [
        replica for replica in partition.replicas if replica in partition.isr or replica in partition.elr
    ]
    if eligible:
        return eligible
    if partition.last_known_leader != NO_BROKER:
        return [partition.last_known_leader]
    return [
        replica for replica in partition.replicas if replica not in partition.lost_replicas
    ] or partition.replicas


class LeaderlessReport:
    """Logs the partitions without a leader while this broker is the controller."""

    def __init__(
        self,
        image: Callable[[], ClusterImage],
        policy_of: PolicyOf,
        stopping: Callable[[], frozenset[int]],
    ) -> None:
        self._image = image
        self._policy_of = policy_of
        self._stopping = stopping
        self._task: asyncio.Task[None] | None = None

    def begin(self, *, is_cluster_start: bool) -> None:
        """Reports all partitions that have no leader when this broker becomes the controller.

        ``is_cluster_start``: this broker knew no earlier controller. The other brokers may be starting, so
        the report is delayed.
        """
        self.end()
        wait_s = CLUSTER_START_S if is_cluster_start else 0.0
        self._task = asyncio.get_running_loop().create_task(self._report_all(wait_s))

    def end(self) -> None:
        """Stops the reports. Called when another broker becomes the controller."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _report_all(self, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        image = self._image()
        topics = [image.topics[name] for name in image.topic_index.leaderless]
        await run_in_slices(self._report_in_slices(image, [(None, topic) for topic in topics]))

    def record_in_slices(self, delta: Delta) -> Generator[None, None, None]:
        """Logs which partitions lost or got a leader in a change. Pauses between many partitions."""
        created = [
            (None, topic) for topic in delta.created if topic.name in delta.image.topic_index.leaderless
        ]
        yield from self._report_in_slices(delta.image, [*delta.changed, *created])

    def _report_in_slices(
        self, image: ClusterImage, topics: list[tuple[TopicImage | None, TopicImage]]
    ) -> Generator[None, None, None]:
        waiting, recovering, led = _Counted(), _Counted(), _Counted()
        stopping = self._stopping()
        looked_at = noted = 0
        for old, new in topics:
            policy = self._policy_of(new)
            for after in new.partitions:
                looked_at += 1
                if looked_at % ITEMS_PER_SLICE == 0:
                    yield
                before = old.partition(after.partition) if old is not None else None
                if before is after or not _is_reportable(before, after):
                    continue
                noted += 1
                if noted % CHANGES_PER_SLICE == 0:
                    yield
                if after.leader != NO_BROKER:
                    led.add(new.name, after, [])
                    continue
                candidates = recovery_candidates(image, after, policy, stopping)
                if candidates:
                    recovering.add(new.name, after, candidates)
                else:
                    waiting.add(new.name, after, awaited_brokers(after))
        _log(image, waiting, recovering, led)


def _is_reportable(before: PartitionImage | None, after: PartitionImage) -> bool:
    """Whether a partition lost its leader, waits for other brokers than before, or has a leader again."""
    if before is None or before.partition_epoch < 0:  # It had no state.
        return after.leader == NO_BROKER
    if after.leader != NO_BROKER:
        return before.leader == NO_BROKER
    return before.leader != NO_BROKER or awaited_brokers(before) != awaited_brokers(after)


def _log(image: ClusterImage, waiting: _Counted, recovering: _Counted, led: _Counted) -> None:
    if waiting.count:
        dead = sorted(waiting.brokers.difference(image.brokers))
        living = sorted(waiting.brokers.intersection(image.brokers))
        texts = [f"waiting for brokers {dead}: start them"] if dead else []
        if living:
            texts.append(f"the replicas on the live brokers {living} are offline or may lack records")
        logger.warning(
            "%s no leader, as no eligible replica is available: %s; %s. If that is not possible: "
            "'tidemill topic elect TOPIC --unclean' elects the longest log of the live replicas, and loses "
            "other records",
            waiting.count_text,
            waiting,
            "; ".join(texts),
        )
    if recovering.count:
        logger.info(
            "%s no leader; requesting log ends from brokers %s to elect the longest log: %s",
            recovering.count_text,
            sorted(recovering.brokers),
            recovering,
        )
    if led.count:
        logger.info("%s a leader again: %s", led.count_text, led)
