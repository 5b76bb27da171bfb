"""Which replicas of this broker may hold less than they acknowledged, as far as its start can tell."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tidemill.coordination.image import TOPIC, ClusterImage
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.log.manager import LogManager
from tidemill.model.types import ZERO_ID, TopicPartition

logger = logging.getLogger("tidemill.log")

NAMED_MAX = 5
"""Partitions that the log line about missing logs names."""


def report_lost_replicas(image: ClusterImage, node_id: int, logs: LogManager) -> LostReplicas:
    """The losses of broker ``node_id``; ``logs`` are loaded, ``image`` is the cluster before it registers.

    A log in a directory whose last stop may have cost unsynced records counts as ``unsynced``, and so does a
    log that has lost records in a way in which a killed process leaves none: pages were dropped. A replica
    whose log is in no directory counts as ``missing``, unless it may be in a directory that failed. A replica
    without others stays offline where a directory is new, for its disk may only not be mounted. A replica in
    a directory that was not in use at the broker's last start counts as ``missing``: this is not the log that
    was in sync.

    Logs of topics that the cluster does not have are noted in ``logs.of_deleted_topics``: this broker has no
    records of a topic that is created under such a name after its start.
    """
    others = image.topics.keys() | image.unreadable_of(TOPIC).keys()
    logs.of_deleted_topics = frozenset(key for key in logs.logs if key.topic not in others)
    if logs.is_blank:
        logs.reported_missing = frozenset(_assigned(image, node_id))
        _warn(image, logs)
        return LostReplicas(missing=True)
    missing: list[TopicPartition] = []
    if len(logs.working) == len(logs.directories):
        has_new_directory = any(directory.is_unsigned for directory in logs.directories)
        missing = [
            key
            for key in _assigned(image, node_id)
            if _is_missing(image, key, logs)
            and not (
                has_new_directory and len(image.topics[key.topic].partitions[key.partition].replicas) == 1
            )
        ]
    logs.reported_missing = frozenset(missing)
    _warn(image, logs)
    outdated = [key for one in logs.working if one.is_outdated for key in one.logs]
    # A topic of the name may be made anew before the controller has read the report.
    logs.reported_missing = logs.reported_missing.union(outdated)
    missing += outdated
    if all(directory.may_have_lost or directory.is_blank for directory in logs.working):
        return LostReplicas(True, _by_topic(missing))
    unsynced = [key for one in logs.working if one.may_have_lost for key in one.logs]
    unsynced += sorted(logs.damaged.difference(unsynced))
    return LostReplicas(_by_topic(unsynced), _by_topic(missing))


def _warn(image: ClusterImage, logs: LogManager) -> None:
    for directory in logs.working:
        if directory.is_outdated and directory.logs:
            logger.warning(
                "the data directory %s was not in use when this broker was last started (its disk was not "
                "mounted, or it was restored from a backup): its %d replicas may lack records that were "
                "acknowledged since; they are reported as lost, and catch up with the leaders of their "
                "partitions",
                directory.path,
                len(directory.logs),
            )
    missing = sorted(logs.reported_missing)
    only = [key for key in missing if len(image.topics[key.topic].partitions[key.partition].replicas) == 1]
    shared = [key for key in missing if key not in set(only)]
    for keys, what in (
        (shared, "they are reported as lost, and rebuilt from the leaders of their partitions"),
        (
            only,
            "no other broker has a replica of them, and they begin empty. If the disk is only not mounted, "
            "stop this broker at once, mount it, and start again",
        ),
    ):
        if keys:
            named = ", ".join(str(key) for key in keys[:NAMED_MAX])
            more = ", ..." if len(keys) > NAMED_MAX else ""
            logger.warning(
                "%d replicas of this broker are in no data directory (%s%s): %s", len(keys), named, more, what
            )


def _assigned(image: ClusterImage, node_id: int) -> Iterable[TopicPartition]:
    """The partitions that have a state, and a replica here."""
    for topic in image.topics.values():
        for partition in topic.partitions:
            if node_id in partition.replicas and partition.partition_epoch >= 0:
                yield TopicPartition(topic.name, partition.partition)


def _is_missing(image: ClusterImage, key: TopicPartition, logs: LogManager) -> bool:
    if key in logs.undecided:
        return False
    found = logs.get(key)
    if found is None:
        return True
    wanted = image.topics[key.topic].topic_id
    return ZERO_ID not in (found.topic_id, wanted) and found.topic_id != wanted


def _by_topic(keys: Iterable[TopicPartition]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for key in keys:
        found.setdefault(key.topic, set()).add(key.partition)
    return {topic: frozenset(partitions) for topic, partitions in found.items()}
