"""What this broker knows of its cluster: the current image, and who is told when it changes."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping

from tidemill.coordination.image import BrokerImage, ClusterImage, Delta, PartitionImage, TopicImage
from tidemill.model.configs import BROKER_KEYS, MIN_INSYNC, BrokerConfig, brokers_while_unreadable
from tidemill.model.errors import ConfigError, KafkaError

__all__ = ["BrokerImage", "ClusterImage", "Delta", "MetadataCache", "PartitionImage", "TopicImage"]

logger = logging.getLogger(__name__)

Listener = Callable[[Delta], Awaitable[None] | None]


class MetadataCache:
    """The newest image. Look-ups are dictionary hits; an image that was taken out never changes."""

    __slots__ = ("_listeners", "departed", "image")

    def __init__(self, image: ClusterImage | None = None) -> None:
        self.image = image if image is not None else ClusterImage()
        self.departed: dict[int, BrokerImage] = {}
        """Brokers that live no more, and are listed for clients; see docs/decisions/held-answers.md."""
        self._listeners: list[Listener] = []

    @property
    def cluster_id(self) -> str:
        """The cluster's id."""
        return self.image.cluster_id

    @property
    def controller_id(self) -> int:
        """The broker that is the controller; -1 when there is none."""
        return self.image.controller_id

    @property
    def brokers(self) -> Mapping[int, BrokerImage]:
        """Living brokers by id, lowest first."""
        return self.image.brokers

    def epoch_registered(self, broker_id: int) -> int:
        """The epoch of a broker's registration; -1 of one that does not live."""
        broker = self.image.brokers.get(broker_id)
        return -1 if broker is None else broker.epoch

    @property
    def topics(self) -> Mapping[str, TopicImage]:
        """Topics by name."""
        return self.image.topics

    def topic(self, name: str) -> TopicImage | None:
        """The topic of that name, or None."""
        return self.image.topics.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        """The topic with that id, or None."""
        return self.image.topics_by_id.get(topic_id)

    def on_change(self, listener: Listener) -> None:
        """Calls ``listener`` with each change, and waits for it if it is a coroutine function.

        Listeners are called one after the other, in the order of registration, once the new image is in
        place. A topic's creation is answered when all are done. What one raises is noted as the failure of
        every topic of the change; :meth:`Delta.fail` names a single one.
        """
        self._listeners.append(listener)

    async def publish(self, delta: Delta) -> None:
        """Makes ``delta.image`` the current one, and tells the listeners."""
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
                logger.exception("A change of the cluster's metadata could not be carried out here.")
                failure = (
                    error if isinstance(error, KafkaError) else KafkaError(f"{type(error).__name__}: {error}")
                )
                for topic in (*delta.created, *delta.deleted):
                    delta.fail(topic.name, failure)
                for _, topic in (*delta.changed, *delta.reconfigured):
                    delta.fail(topic.name, failure)


def effective_config(config: BrokerConfig, image: ClusterImage, broker_id: int) -> BrokerConfig:
    """``config`` with what was set at run time, for this broker and for all, as the image has it.

    What makes no sense is told as an error and does not count, as without the broker nobody could mend it;
    and nothing is deleted by a default that may be shorter than what was asked for.

    Source: Apache Kafka, ``DynamicBrokerConfig.scala``, which goes on with the defaults.
    """
    own = _readable(image.broker_config(broker_id), f"broker {broker_id}")
    shared = _readable(image.default_broker_config(), "all brokers")
    if config.store() == "zookeeper" and MIN_INSYNC in shared:
        own.pop(MIN_INSYNC, None)
    try:
        return config.with_overrides(own, shared)
    except ConfigError as problem:
        logger.error("What was set while brokers ran does not count, as it contradicts itself: %s", problem)
        return config.with_overrides({}, {})


def warn_overridden(config: BrokerConfig, image: ClusterImage, broker_id: int) -> None:
    """Warns of a ``min.insync.replicas`` of this broker that the cluster's overrides.

    Controller and leaders have to count with the same value: see docs/decisions/eligible-leader-replicas.md.
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
                "%s=%s %s is overridden by the cluster's, %s: change that one with "
                "'tidemill broker alter default --set %s=%s'",
                MIN_INSYNC,
                text,
                where,
                shared,
                MIN_INSYNC,
                text,
            )


def _readable(settings: Mapping[str, str], whose: str) -> dict[str, str]:
    found: dict[str, str] = {}
    careful: dict[str, str] = {}
    for name, text in settings.items():
        try:
            if name in BROKER_KEYS:
                BROKER_KEYS[name].parse(text)
            found[name] = text
        except ConfigError as problem:
            logger.error("A setting of %s in the cluster's store does not count: %s", whose, problem)
            careful |= brokers_while_unreadable(name)
    return found | careful
