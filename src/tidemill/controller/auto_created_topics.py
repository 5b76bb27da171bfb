"""The settings of topics that brokers create automatically.

This module has no I/O; see :mod:`tidemill.controller.topics`.
"""

from __future__ import annotations

from tidemill.controller.topics import NewTopic
from tidemill.model.configs import BrokerConfig


def automatic_topic(config: BrokerConfig, name: str, replicas_max: int | None = None) -> NewTopic:
    """Returns the topic to create under ``name``. Internal topics have their own settings.

    ``replicas_max`` limits the configured replication factor of internal topics: with fewer brokers, creation
    would fail.
    """
    if name == "__consumer_offsets":
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.int("offsets.topic.segment.bytes")),
        }
        factor = _bounded(config.int("offsets.topic.replication.factor"), replicas_max)
        return NewTopic(name, config.int("offsets.topic.num.partitions"), factor, config=settings)
    if name == "__transaction_state":
        factor = _bounded(config.int("transaction.state.log.replication.factor"), replicas_max)
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": str(config.int("transaction.state.log.segment.bytes")),
            "min.insync.replicas": str(min(config.int("transaction.state.log.min.isr"), factor)),
            "unclean.leader.election.enable": "false",
        }
        return NewTopic(name, config.int("transaction.state.log.num.partitions"), factor, config=settings)
    return NewTopic(name)


def _bounded(factor: int, replicas_max: int | None) -> int:
    return factor if replicas_max is None else max(1, min(factor, replicas_max))
