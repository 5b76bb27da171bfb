"""Determines at the start which replicas of this broker may lack acknowledged records."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tidemill.coordination.cluster_image import TOPIC, ClusterImage
from tidemill.coordination.lost_replicas import LostReplicas
from tidemill.log.log_manager import LogManager
from tidemill.model.types import ZERO_ID, TopicPartition

logger = logging.getLogger("tidemill.log")

NAMED_MAX = 5
"""The maximum number of partitions in the log line about missing logs."""


def detect_lost_replicas(image: ClusterImage, node_id: int, logs: LogManager) -> LostReplicas:
    """The lost replicas of broker ``node_id``. ``logs`` are loaded; ``image`` is from before the
    registration.

    - ``unsynced``: the last stop of the directory may have lost unsynced records, or the log lacks records in
      a way that a killed process does not cause (the page cache was lost).
    - ``missing``: the log is in no directory, and no directory has failed. Exception: if a directory is new,
      the only replica of a partition is not reported, because its disk may only not be mounted. It stays
      offline.
    - ``missing``: the directory was not in use at the last start, so that this is not the log that was in
      sync.

    The function also sets ``logs.dirs.of_deleted_topics``, the logs of topics that the cluster does not have.
    A topic that is created later under such a name does not use them.
    """
    others = image.topics.keys() | image.unreadable_of(TOPIC).keys()
    logs.dirs.of_deleted_topics = frozenset(key for key in logs.logs if key.topic not in others)
    if logs.dirs.is_blank:
        logs.dirs.reported_missing = frozenset(_assigned(image, node_id))
        _warn(image, logs)
        return LostReplicas(missing=True)
    missing: list[TopicPartition] = []
    if len(logs.dirs.online) == len(logs.dirs.all):
        has_new_directory = any(directory.has_unwritten_meta for directory in logs.dirs.all)
        missing = [
            key
            for key in _assigned(image, node_id)
            if _is_missing(image, key, logs)
            and not (
                has_new_directory and len(image.topics[key.topic].partitions[key.partition].replicas) == 1
            )
        ]
    logs.dirs.reported_missing = frozenset(missing)
    _warn(image, logs)
    outdated = [key for one in logs.dirs.online if one.is_outdated for key in one.logs]
    # A topic may be deleted and created again before the controller has read the report.
    logs.dirs.reported_missing = logs.dirs.reported_missing.union(outdated)
    missing += outdated
    if all(directory.may_have_lost or directory.is_blank for directory in logs.dirs.online):
        return LostReplicas(True, _by_topic(missing))
    unsynced = [key for one in logs.dirs.online if one.may_have_lost for key in one.logs]
    unsynced += sorted(logs.dirs.damaged.difference(unsynced))
    return LostReplicas(_by_topic(unsynced), _by_topic(missing))


def _warn(image: ClusterImage, logs: LogManager) -> None:
    for directory in logs.dirs.online:
        if directory.is_outdated and directory.logs:
            logger.warning(
                "the data directory %s was not in use at the last start of this broker (its disk was not "
                "mounted, or it was restored from a backup): its %d replicas may lack acknowledged records; "
                "they are reported as lost, and catch up with their leaders",
                directory.path,
                len(directory.logs),
            )
    missing = sorted(logs.dirs.reported_missing)
    only = [key for key in missing if len(image.topics[key.topic].partitions[key.partition].replicas) == 1]
    shared = [key for key in missing if key not in set(only)]
    for keys, what in (
        (shared, "they are reported as lost, and rebuilt from their leaders"),
        (
            only,
            "no other broker has a replica of them, and they start empty. If a disk is only not mounted, "
            "stop this broker at once, mount the disk, and start the broker again",
        ),
    ):
        if keys:
            named = ", ".join(str(key) for key in keys[:NAMED_MAX])
            more = ", ..." if len(keys) > NAMED_MAX else ""
            logger.warning(
                "%d replicas of this broker are in no data directory (%s%s): %s", len(keys), named, more, what
            )


def _assigned(image: ClusterImage, node_id: int) -> Iterable[TopicPartition]:
    """The partitions with a state in the store and a replica on the broker."""
    for topic in image.topics.values():
        for partition in topic.partitions:
            if node_id in partition.replicas and partition.partition_epoch >= 0:
                yield TopicPartition(topic.name, partition.partition)


def _is_missing(image: ClusterImage, key: TopicPartition, logs: LogManager) -> bool:
    if key in logs.dirs.ambiguous:
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
