"""Finds mirrors in a circle: a cluster that is mirrored to itself, and mirrors of the same topics over two or
more clusters that end where they began.

With the same names and new offsets nothing in a topic tells that its records came from the target. Each
mirror therefore commits a mark for each topic that it writes, in a group of the target that is named after
the source. It passes on the marks that its own topics have at the source: the topics of the target then have
a mark of each cluster whose records they get, over any number of mirrors. A mirror of any kind finds the
marks of its target at its source, and refuses these topics.

A mark has its time as metadata, and is valid for a while only: after a failover the same topics may be
mirrored back. A mark that is passed on keeps the time of the first mirror, so that the marks of a mirror that
has ended become invalid everywhere at once, and no circle renews them.

With prefixes the names tell as well, over any number of clusters (:mod:`.target_names`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
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
"""How long a mark is valid. Marks are renewed and passed on whenever the topics are compared, every 10 s.
Each mirror adds at most this interval to the age of a mark, so that circles of ten clusters are found.
"""
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


class TopicMarks:
    """The marks that a mirror commits to its target. The admin clients are the caller's."""

    def __init__(self, source: Admin, target: Admin) -> None:
        self._source = source
        self._target = target
        self._marked: Mapping[str, str] = {}
        """The target's name of each topic that was marked last."""
        self._marked_s = 0.0
        self._groups: set[str] = set()
        """The groups of the source with marks of other clusters."""
        self._next_try_s = 0.0

    def commit(
        self, names: Mapping[str, str], loops: Collection[str] = (), now_s: float | None = None
    ) -> None:
        """Marks topics of the target as mirrors of this source, and of the clusters that the marks of the
        source's topics name.

        ``names`` has the target's name of each mirrored topic. ``loops`` are topics of the source with
        records of the target: those that have a valid mark of this mirror keep it. Of mirrors that have
        closed a circle at the same time, none continues until another one has ended.

        Raises ClientError during an outage of the target. Marks of other clusters are passed on if possible.
        """
        now_s = time.time() if now_s is None else now_s
        ids = ClusterIds(
            self._source.describe_cluster().cluster_id, self._target.describe_cluster().cluster_id
        )
        if now_s - self._marked_s < MARK_S:
            names = {**{topic: name for topic, name in self._marked.items() if topic in loops}, **names}
        if not names:
            return
        try:
            if ids.source is not None:
                self._commit_own(GROUP_PREFIX + ids.source, names, now_s)
        finally:
            if time.monotonic() >= self._next_try_s:
                began_s = time.monotonic()
                self._pass_on(names, ids, now_s)
                self._next_try_s = _next_try_s(began_s)

    def _commit_own(self, group: str, names: Mapping[str, str], now_s: float) -> None:
        mark = _mark_of(int(now_s * 1000))
        marks = {TopicPartition(name, 0): mark for name in names.values()}
        try:
            self._target.alter_group_offsets(group, marks, timeout=COORDINATOR_S)
        except ClientError as problem:
            if _must_wait(problem):
                raise
            logger.info("topics are not marked as mirrors, so that a loop is not noticed: %s", problem)
        else:
            self._marked, self._marked_s = names, now_s

    def _pass_on(self, names: Mapping[str, str], ids: ClusterIds, now_s: float) -> None:
        """Commits the valid marks that the source's topics have of third clusters, unless the target has
        later ones, from a mirror that is nearer to their origin.
        """
        own = {GROUP_PREFIX + known for known in ids if known is not None}
        try:
            listed = {listing.group_id for listing in self._source.list_groups(timeout=COORDINATOR_S)}
            self._groups = {group for group in listed if group.startswith(GROUP_PREFIX)} - own
        except ClientError as problem:
            # The groups that were listed last may still have coordinators.
            logger.info("groups with marks of mirrors cannot be listed: %s", problem)
        if not self._groups:
            return
        found = self._source.offsets_of_groups(dict.fromkeys(self._groups), timeout=COORDINATOR_S)
        passed = {
            group: {
                TopicPartition(names[topic], 0): time_ms
                for topic, time_ms in _valid(marks, now_s).items()
                if topic in names
            }
            for group, marks in found.offsets.items()
        }
        wanted = {group: times.keys() for group, times in passed.items() if times}
        if not wanted:
            return
        known = self._target.offsets_of_groups(wanted, timeout=COORDINATOR_S)
        later = {
            group: {
                item: _mark_of(time_ms)
                for item, time_ms in passed[group].items()
                if item not in marks or _time_ms(marks[item].metadata) < time_ms
            }
            for group, marks in known.offsets.items()
        }
        refused = self._target.alter_offsets_of_groups(later, timeout=COORDINATOR_S)
        if failures := {**found.failures, **known.failures, **refused}:
            logger.info(
                "the marks of %d groups are not passed on, so that a loop may not be noticed: %s",
                len(failures),
                next(iter(failures.values())),
            )


def marked_topics(
    source: Admin, target: Admin, known: set[str] | None = None, *, now_s: float | None = None
) -> set[str]:
    """Returns the topics of the source that have records of the target; ``known`` during an outage."""
    target_id = target.describe_cluster().cluster_id
    if target_id is None:
        return set()
    try:
        marks = source.group_offsets(GROUP_PREFIX + target_id, timeout=COORDINATOR_S)
    except ClientError as problem:
        if known is None and _must_wait(problem):
            raise
        logger.info("marks of mirrors cannot be read, so that a new loop is not noticed: %s", problem)
        return known or set()
    return set(_valid(marks, time.time() if now_s is None else now_s))


class KnownMarks:
    """The topics of the source that have records of the target, as they were read last.

    The coordinator of the marks is the leader of one partition: topics are copied while it has none.
    """

    def __init__(self, source: Admin, target: Admin, *, must_wait: bool = True) -> None:
        self._source = source
        self._target = target
        self._topics: set[str] | None = None if must_wait else set()
        self._next_try_s = 0.0

    def topics(self) -> set[str]:
        """Returns the topics. Raises ClientError during an outage if they were never read, unless the mirror
        need not wait for them.
        """
        began_s = time.monotonic()
        if self._topics is None or began_s >= self._next_try_s:
            self._topics = marked_topics(self._source, self._target, self._topics)
            self._next_try_s = _next_try_s(began_s)
        return self._topics


def _must_wait(problem: ClientError) -> bool:
    """Whether there may be marks. A cluster without coordinators of groups has none."""
    return is_outage(problem) and problem.code is not ErrorCode.COORDINATOR_NOT_AVAILABLE


def _next_try_s(began_s: float) -> float:
    """Returns when an attempt is repeated: one that has waited for a coordinator not at once."""
    is_slow = time.monotonic() - began_s >= COORDINATOR_S / 2
    return began_s + MARK_S / 2 if is_slow else 0.0


def _mark_of(time_ms: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(0, -1, str(time_ms))


def _valid(marks: Mapping[TopicPartition, OffsetAndMetadata], now_s: float) -> dict[str, int]:
    """Returns the times of the marks that are valid, by topic."""
    since_ms = (now_s - MARK_S) * 1000
    times = {item.topic: _time_ms(mark.metadata) for item, mark in marks.items()}
    return {topic: time_ms for topic, time_ms in times.items() if time_ms >= since_ms}


def _time_ms(text: str) -> int:
    return int(text) if text.isdecimal() else 0
