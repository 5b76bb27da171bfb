"""Repeats the deletions of topics and replicas that failed on this broker because of a disk error."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from tidemill.broker.apply_leader_and_isr import LeaderAndIsrApplier
from tidemill.broker.broker import Broker
from tidemill.coordination.coordination_store import StoreError
from tidemill.coordination.topic_image import TopicImage, TopicKey
from tidemill.model.backoff import Backoff, retry
from tidemill.model.errors import KafkaError, StorageError
from tidemill.model.task_set import TaskSet

logger = logging.getLogger("tidemill.server")

RETRY_S, RETRY_S_MAX = 1.0, 30.0
"""The first and the longest pause before a deletion is repeated."""


class RefusedDeletions:
    """The failed deletions that the controller of this process has requested from this broker."""

    def __init__(self, broker: Broker, applier: LeaderAndIsrApplier, tasks: TaskSet) -> None:
        self._broker = broker
        self._applier = applier
        self._tasks = tasks
        self._topics: set[TopicKey] = set()
        self._replicas: set[tuple[bytes, int]] = set()
        """Topic ids and partitions."""

    def retry_topic(self, topic: TopicImage) -> None:
        """Repeats the deletion of the topic's logs until it succeeds."""
        key = (topic.name, topic.topic_id)
        if key not in self._topics:
            self._topics.add(key)
            self._tasks.start(self._delete_topic(topic))

    async def _delete_topic(self, topic: TopicImage) -> None:
        """Deletes a topic when the disk works again, while this broker is the controller."""
        key = (topic.name, topic.topic_id)
        try:
            is_deleted = await _until_deleted(
                lambda: self._applier.retry_topic_deletion(topic),
                topic.name,
                lambda: self._is_deleting(topic),
            )
        finally:
            self._topics.discard(key)
        if is_deleted:
            await self.confirm(self._broker.node_id, [key])

    def _is_deleting(self, topic: TopicImage) -> bool:
        """Whether this controller deletes the topic. Another controller sends a request to this broker."""
        controller = self._broker.controller
        known = controller.image.deleting.get(topic.name)
        return controller.is_active and known is not None and known.topic_id == topic.topic_id

    async def confirm(self, broker_id: int, topics: Sequence[TopicKey]) -> None:
        """Confirms to the controller of this process that a broker has no files of these topics."""
        try:
            await self._broker.controller.admin_manager.replicas_deleted(broker_id, topics)
        except (KafkaError, StoreError) as problem:
            names = ", ".join(name for name, _ in topics)
            logger.warning(
                "the deletion of %s could not be confirmed, and continues later: %s", names, problem
            )

    def retry_replica(self, topic: TopicImage, index: int) -> None:
        """Repeats the deletion of a reassigned replica until it succeeds."""
        key = (topic.topic_id, index)
        if key not in self._replicas:
            self._replicas.add(key)
            self._tasks.start(self._delete_replica(topic, index))

    async def _delete_replica(self, topic: TopicImage, index: int) -> None:
        """Deletes a reassigned replica when the disk works again; no other request repeats the deletion."""
        try:
            await _until_deleted(
                lambda: self._applier.retry_replica_deletion(topic, index),
                f"{topic.name}-{index}",
                lambda: True,
            )
        finally:
            self._replicas.discard((topic.topic_id, index))


async def _until_deleted(
    delete: Callable[[], Awaitable[None]], name: str, is_wanted: Callable[[], bool]
) -> bool:
    """Repeats ``delete``, with pauses, until it succeeds. Returns False if it is not wanted any more."""

    async def attempt() -> bool:
        if is_wanted():
            await delete()
            return True
        return False

    def failed(problem: StorageError, pause_s: float) -> None:
        logger.error("%s could not be deleted, which is retried in %g s: %s", name, pause_s, problem)

    backoff = Backoff(RETRY_S, RETRY_S_MAX)
    await backoff.sleep()
    return await retry(attempt, StorageError, backoff, failed)
