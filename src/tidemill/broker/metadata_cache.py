"""The metadata of the cluster on this broker: the current image, and listeners for its changes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

from tidemill.coordination.cluster_image import BrokerImage, ClusterImage, Delta
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.model.errors import KafkaError

__all__ = ["BrokerImage", "ClusterImage", "Delta", "MetadataCache", "PartitionImage", "TopicImage"]

logger = logging.getLogger(__name__)

Listener = Callable[[Delta], Awaitable[None]]


class MetadataCache:
    """The newest cluster image. Images are immutable, and look-ups use their dictionaries."""

    __slots__ = ("_listeners", "departed", "image")

    def __init__(self, image: ClusterImage | None = None) -> None:
        self.image = image if image is not None else ClusterImage()
        self.departed: dict[int, BrokerImage] = {}
        """Former brokers that Metadata still lists; see docs/decisions/delayed-metadata-responses.md."""
        self._listeners: list[Listener] = []

    @property
    def brokers(self) -> Mapping[int, BrokerImage]:
        """The live brokers by id, lowest first."""
        return self.image.brokers

    def broker_epoch(self, broker_id: int) -> int:
        """Returns the broker epoch; -1 for a broker that is not live."""
        broker = self.image.brokers.get(broker_id)
        return -1 if broker is None else broker.epoch

    @property
    def topics(self) -> Mapping[str, TopicImage]:
        """The topics by name."""
        return self.image.topics

    def topic(self, name: str) -> TopicImage | None:
        """Returns the topic with this name, or None."""
        return self.image.topics.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        """Returns the topic with this id, or None."""
        return self.image.topics_by_id.get(topic_id)

    def on_change(self, listener: Listener) -> None:
        """Registers a listener for changes.

        :meth:`publish` calls the listeners one after the other, in the order of registration, after it has
        replaced the image. The response to CreateTopics waits for all of them. An exception of a listener is
        a failure of all topics of the change.
        """
        self._listeners.append(listener)

    async def publish(self, delta: Delta) -> dict[str, KafkaError]:
        """Replaces the image by ``delta.image``, and calls the listeners. Returns the failures by topic."""
        living = delta.image.brokers
        self.departed |= {one: known for one, known in self.image.brokers.items() if one not in living}
        for broker_id in [one for one in self.departed if one in living]:
            del self.departed[broker_id]
        self.image = delta.image
        failures: dict[str, KafkaError] = {}
        for listener in self._listeners:
            try:
                await listener(delta)
            except Exception as error:
                logger.exception("applying a change of the cluster metadata failed")
                failure = (
                    error if isinstance(error, KafkaError) else KafkaError(f"{type(error).__name__}: {error}")
                )
                for topic in (*delta.created, *delta.deleted):
                    failures.setdefault(topic.name, failure)
                for _, topic in (*delta.changed, *delta.reconfigured):
                    failures.setdefault(topic.name, failure)
        return failures
