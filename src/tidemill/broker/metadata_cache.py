"""The metadata of the cluster on this broker: the current image, and listeners for its changes."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping

from tidemill.coordination.cluster_image import BrokerImage, ClusterImage, Delta
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.model.configs import BROKER_KEYS, MIN_INSYNC, BrokerConfig, brokers_while_unreadable
from tidemill.model.errors import ConfigError, KafkaError

__all__ = ["BrokerImage", "ClusterImage", "Delta", "MetadataCache", "PartitionImage", "TopicImage"]

logger = logging.getLogger(__name__)

Listener = Callable[[Delta], Awaitable[None] | None]


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
        """Registers a listener for changes, which may be a coroutine function.

        :meth:`publish` calls the listeners one after the other, in the order of registration, after it has
        replaced the image. The response to CreateTopics waits for all of them. An exception of a listener is
        a failure of all topics of the change; :meth:`Delta.fail` reports the failure of a single topic.
        """
        self._listeners.append(listener)

    async def publish(self, delta: Delta) -> None:
        """Replaces the image by ``delta.image``, and calls the listeners."""
        living = delta.image.brokers
        self.departed |= {one: known for one, known in self.image.brokers.items() if one not in living}
        for broker_id in [one for one in self.departed if one in living]:
            del self.departed[broker_id]
        self.image = delta.image
        for listener in self._listeners:
            try:
                outcome = listener(delta)
                if inspect.isawaitable(outcome):
                    await outcome
            except Exception as error:
                logger.exception("applying a change of the cluster metadata failed")
                failure = (
                    error if isinstance(error, KafkaError) else KafkaError(f"{type(error).__name__}: {error}")
                )
                for topic in (*delta.created, *delta.deleted):
                    delta.fail(topic.name, failure)
                for _, topic in (*delta.changed, *delta.reconfigured):
                    delta.fail(topic.name, failure)


def effective_config(config: BrokerConfig, image: ClusterImage, broker_id: int) -> BrokerConfig:
    """Returns ``config`` with the dynamic settings of the image, for this broker and for all brokers.

    Invalid settings are logged as errors and ignored, so that the broker starts and they can be corrected. An
    invalid retention setting disables the deletion of records: the default may be shorter.

    Source: Apache Kafka, ``DynamicBrokerConfig.scala``, which uses the defaults.
    """
    own = _valid_settings(image.broker_config(broker_id), f"broker {broker_id}")
    shared = _valid_settings(image.default_broker_config(), "all brokers")
    if config.store() == "zookeeper" and MIN_INSYNC in shared:
        own.pop(MIN_INSYNC, None)
    try:
        return config.with_overrides(own, shared)
    except ConfigError as problem:
        logger.error("the dynamic broker settings are ignored, as they contradict each other: %s", problem)
        return config.with_overrides({}, {})


def warn_overridden(config: BrokerConfig, image: ClusterImage, broker_id: int) -> None:
    """Logs a warning if the cluster overrides the ``min.insync.replicas`` of this broker.

    Controller and leaders must use the same value: see docs/decisions/eligible-leader-replicas.md.
    """
    shared = image.default_broker_config().get(MIN_INSYNC)
    if config.store() != "zookeeper" or shared is None:
        return
    in_file = config.int(MIN_INSYNC)
    for text, where in (
        (str(in_file) if config.is_set(MIN_INSYNC) else None, "in its file"),
        (image.broker_config(broker_id).get(MIN_INSYNC), f"in the store, for broker {broker_id} alone"),
    ):
        if text is not None and text != shared:
            logger.warning(
                "%s=%s %s is overridden by the value of the cluster, %s: change it with "
                "'tidemill broker alter default --set %s=%s'",
                MIN_INSYNC,
                text,
                where,
                shared,
                MIN_INSYNC,
                text,
            )


def _valid_settings(settings: Mapping[str, str], whose: str) -> dict[str, str]:
    found: dict[str, str] = {}
    fallbacks: dict[str, str] = {}
    for name, text in settings.items():
        try:
            if name in BROKER_KEYS:
                BROKER_KEYS[name].parse(text)
            found[name] = text
        except ConfigError as problem:
            logger.error("an invalid setting of %s in the coordination store is ignored: %s", whose, problem)
            fallbacks |= brokers_while_unreadable(name)
    return found | fallbacks
