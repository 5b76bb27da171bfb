"""Finds mirrors in a circle: a cluster that is mirrored to itself, and two mirrors of the same topics against
each other.

With the same names and new offsets nothing in a topic tells that its records came from the target. Each
mirror therefore commits a mark for each topic that it writes, in a group of the target that is named after
the source. A mirror in the opposite direction, of any kind, finds these marks at its source. A mark has its
time as metadata, and is valid for a while only: after a failover the same topics may be mirrored back.

With prefixes the names tell as well, over any number of clusters (:mod:`.target_names`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Final

from tidemill.client.admin import Admin
from tidemill.client.errors import ClientError
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.pipeline.mirror.checkpoint_clusters import ClusterIds
from tidemill.pipeline.mirror.cluster_outages import is_outage

logger = logging.getLogger("tidemill.pipeline")

GROUP_PREFIX: Final = "tidemill-mirror."
MARK_S: Final = 120.0
"""How long a mark is valid. Marks are renewed whenever the topics are compared."""
COORDINATOR_S: Final = 5.0
"""How long the coordinator of the marks is waited for: topics are copied without it."""


def refuse_same_cluster(source: Admin, target: Admin, alias: str) -> ClusterIds:
    """Returns the ids of both clusters. Raises ConfigError if they are one cluster."""
    ids = ClusterIds(source.describe_cluster().cluster_id, target.describe_cluster().cluster_id)
    if ids.source is not None and ids.source == ids.target:
        raise ConfigError(
            f"the source {alias} and the target are the same cluster (its id is {ids.source}): each record "
            "would be copied again and again. Name another cluster"
        )
    return ids


def mark_topics(source: Admin, target: Admin, names: Iterable[str], now_s: float | None = None) -> None:
    """Marks topics of the target as mirrors of this source."""
    source_id = source.describe_cluster().cluster_id
    mark = OffsetAndMetadata(0, -1, str(int((time.time() if now_s is None else now_s) * 1000)))
    marks = {TopicPartition(name, 0): mark for name in names}
    if source_id is None or not marks:
        return
    try:
        target.alter_group_offsets(GROUP_PREFIX + source_id, marks, timeout=COORDINATOR_S)
    except ClientError as problem:
        if _must_wait(problem):
            raise
        logger.info("topics are not marked as mirrors, so that a loop is not noticed: %s", problem)


def marked_topics(
    source: Admin, target: Admin, known: set[str] | None = None, *, now_s: float | None = None
) -> set[str]:
    """Returns the topics of the source that a mirror of the target writes now; ``known`` during an outage."""
    target_id = target.describe_cluster().cluster_id
    if target_id is None:
        return set()
    since_ms = ((time.time() if now_s is None else now_s) - MARK_S) * 1000
    try:
        marks = source.group_offsets(GROUP_PREFIX + target_id, timeout=COORDINATOR_S)
    except ClientError as problem:
        if known is None and _must_wait(problem):
            raise
        logger.info("marks of mirrors cannot be read, so that a new loop is not noticed: %s", problem)
        return known or set()
    return {item.topic for item, mark in marks.items() if _time_ms(mark.metadata) >= since_ms}


class KnownMarks:
    """The topics of the source that a mirror of the target writes, as they were read last.

    The coordinator of the marks is the leader of one partition: topics are copied while it has none.
    """

    def __init__(self, source: Admin, target: Admin) -> None:
        self._source = source
        self._target = target
        self._topics: set[str] | None = None
        self._next_try_s = 0.0

    def topics(self) -> set[str]:
        """Returns the topics. Raises ClientError during an outage if they were never read."""
        began_s = time.monotonic()
        if self._topics is None or began_s >= self._next_try_s:
            self._topics = marked_topics(self._source, self._target, self._topics)
            # An attempt that has waited for a coordinator is not repeated at once.
            is_slow = time.monotonic() - began_s >= COORDINATOR_S / 2
            self._next_try_s = began_s + MARK_S / 2 if is_slow else 0.0
        return self._topics


def _must_wait(problem: ClientError) -> bool:
    """Whether there may be marks. A cluster without coordinators of groups has none."""
    return is_outage(problem) and problem.code is not ErrorCode.COORDINATOR_NOT_AVAILABLE


def _time_ms(text: str) -> int:
    return int(text) if text.isdecimal() else 0
