"""All keys by scope, and their relations: former defaults, synonyms, renamed keys."""

from __future__ import annotations

from tidemill.model.configs.cluster_keys import CLUSTER
from tidemill.model.configs.config_def import ConfigDef, Key, Row
from tidemill.model.configs.group_keys import GROUP, GROUPS
from tidemill.model.configs.network_keys import NETWORK
from tidemill.model.configs.storage_keys import STORAGE
from tidemill.model.configs.topic_keys import TOPIC

FORMER_DEFAULTS: dict[str, str] = {
    "auto.leader.rebalance.enable": "false before 0.8.2",
    "delete.topic.enable": "false before 1.0",
    "log.cleaner.dedupe.buffer.size": "524288000 before 0.9",
    "log.cleaner.enable": "false before 0.9",
    "log.dir": "/tmp/kafka-logs in Kafka, which a reboot may empty",
    "message.max.bytes": "1000000 before 2.5",
    "num.recovery.threads.per.data.dir": "1 before 4.0",
    "offsets.retention.minutes": "1440 before 2.0",
    "replica.lag.time.max.ms": "10000 before 2.5",
    "socket.listen.backlog.size": "50 in Kafka",
    "socket.send.buffer.bytes": "102400 in Kafka",
    "unclean.leader.election.enable": "true before 0.11",
    "zookeeper.session.timeout.ms": "6000 before 2.5",
    "zookeeper.connection.timeout.ms": "6000 before 2.5",
    "max.message.bytes": "1000000 before 2.5",
}
"""Defaults that Kafka, or this program, has changed since the 0.8 documents; the new default applies."""

BROKER_SYNONYMS: dict[str, tuple[tuple[str, int], ...]] = {
    "log.dirs": (("log.dir", 1),),
    "log.flush.interval.ms": (("log.flush.scheduler.interval.ms", 1),),
    "log.message.timestamp.after.max.ms": (("log.message.timestamp.difference.max.ms", 1),),
    "log.message.timestamp.before.max.ms": (("log.message.timestamp.difference.max.ms", 1),),
    "log.retention.ms": (("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)),
    "log.roll.jitter.ms": (("log.roll.jitter.hours", 3_600_000),),
    "log.roll.ms": (("log.roll.hours", 3_600_000),),
    "log.segment.delete.delay.ms": (("log.delete.delay.ms", 1),),
    "node.id": (("broker.id", 1),),
    "offsets.retention.minutes": (("offsets.topic.retention.minutes", 1),),
    "zookeeper.connection.timeout.ms": (("zookeeper.session.timeout.ms", 1),),
}
"""Maps a broker key to the keys that replace it when it is not set, in order, each with a factor."""

TOPIC_SYNONYMS: dict[str, str] = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.downconversion.enable": "log.message.downconversion.enable",
    "message.format.version": "log.message.format.version",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
"""Maps a topic key to the broker key that applies where the topic does not set it."""


def _keys(scope: str, *rows: Row) -> ConfigDef:
    return ConfigDef(scope, (Key(row, scope, FORMER_DEFAULTS.get(row[0], "")) for row in rows))


BROKER_KEYS = _keys("broker", *NETWORK, *STORAGE, *CLUSTER, *GROUPS)
TOPIC_KEYS = _keys("topic", *TOPIC)
GROUP_KEYS = _keys("group", *GROUP)
