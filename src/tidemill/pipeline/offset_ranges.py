"""Resolves options against the cluster: the partitions to read, their start and end offsets."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidemill.client.errors import ClientError, DataLoss, TopicRecreated
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.model.similar_names import did_you_mean
from tidemill.model.types import TopicPartition
from tidemill.pipeline.batch_planning import ClusterView, Offsets
from tidemill.pipeline.cluster import Cluster
from tidemill.pipeline.options import Bound, SourceOptions
from tidemill.pipeline.stream_offsets import describe_partitions
from tidemill.wire.list_offset_timestamps import EARLIEST, LATEST

if TYPE_CHECKING:
    from tidemill.client.range_reader import TopicView

logger = logging.getLogger("tidemill.pipeline")


def select_topics(cluster: Cluster, options: SourceOptions, *, strict: bool) -> dict[str, TopicView]:
    """Returns the topics of the options that the cluster has.

    With ``strict``, raises ConfigError for a named topic or partition that does not exist; a pattern may
    match none.
    """
    if options.pattern is not None:
        pattern = re.compile(options.pattern)
        return cluster.describe([name for name in cluster.topic_names() if pattern.fullmatch(name)])
    wanted = options.topics or tuple(sorted({partition.topic for partition in options.assigned}))
    found = cluster.describe(wanted)
    if strict:
        _refuse_missing(cluster, options, wanted, found)
    return found


def partitions_of(options: SourceOptions, topics: Mapping[str, TopicView]) -> list[TopicPartition]:
    """Returns all partitions of the topics, or the assigned ones that exist; sorted."""
    existing = [
        TopicPartition(topic, number)
        for topic, view in sorted(topics.items())
        for number in range(view.partitions)
    ]
    assigned = set(options.assigned)
    return [partition for partition in existing if not assigned or partition in assigned]


def read_view(cluster: Cluster, options: SourceOptions, *, strict: bool = False) -> ClusterView:
    """Reads the current ids, earliest and latest offsets of the selected topics.

    A topic that is deleted between the requests for its metadata and its offsets is omitted, like a topic
    deleted before. With ``strict``, raises ConfigError if the options name it.
    """
    topics = select_topics(cluster, options, strict=strict)
    while True:
        partitions = partitions_of(options, topics)
        try:
            return ClusterView(
                {topic: view.topic_id for topic, view in topics.items()},
                cluster.list_offsets(dict.fromkeys(partitions, EARLIEST)),
                cluster.list_offsets(dict.fromkeys(partitions, LATEST)),
            )
        except ClientError as problem:
            if not is_gone(problem) or problem.topic not in topics:
                raise
            if strict and options.pattern is None:
                raise ConfigError(missing_topic(cluster, problem.topic, options.bootstrap)) from None
            topics = {topic: view for topic, view in topics.items() if topic != problem.topic}


def is_gone(problem: ClientError) -> bool:
    """Whether a request failed because its topic or partition does not exist."""
    return problem.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


def missing_topic(cluster: Cluster, topic: str, bootstrap: str) -> str:
    """Returns the message for a topic that does not exist, with the closest existing name."""
    hint = did_you_mean(topic, cluster.topic_names()) or "."
    return f"there is no topic {topic} at {bootstrap}{hint}"


def resolve_bound(
    cluster: Cluster, bound: Bound, view: ClusterView, *, latest_without_match: bool
) -> tuple[dict[TopicPartition, int], list[str]]:
    """Returns the offsets of a start or an end, and messages about offsets that do not exist.

    Raises ConfigError if the JSON does not name exactly the partitions that are read, or if no record is as
    late as a starting time.
    """
    if bound.everywhere is not None and not bound.by_time:
        return dict(view.earliest if bound.everywhere == EARLIEST else view.latest), []
    if bound.everywhere is None:
        _refuse_other_partitions(bound, view.latest)
    numbers = {
        partition: bound.everywhere if bound.everywhere is not None else bound.partitions[partition]
        for partition in view.latest
    }
    if bound.by_time:
        return _by_time(cluster, bound, numbers, view, latest_without_match), []
    losses: list[str] = []
    resolved = {
        partition: _offset(bound, partition, number, view, losses) for partition, number in numbers.items()
    }
    return resolved, losses


def report_losses(losses: Sequence[str], options: SourceOptions) -> None:
    """Raises DataLoss, or logs a warning if ``failOnDataLoss`` is false. No-op without losses."""
    if not losses:
        return
    text = "; ".join(losses)
    if not options.fail_on_data_loss:
        logger.warning("failOnDataLoss=false, continuing with the existing data: %s", text)
        return
    error = TopicRecreated if any("recreated" in loss for loss in losses) else DataLoss
    raise error(
        f"{text}. The query stops here because failOnDataLoss is true: set failOnDataLoss=false to continue "
        "with the remaining data, or start again with a new checkpoint and a new output"
    )


def _offset(
    bound: Bound, partition: TopicPartition, number: int, view: ClusterView, losses: list[str]
) -> int:
    earliest, latest = view.earliest[partition], view.latest[partition]
    if number == EARLIEST:
        return earliest
    if number == LATEST:
        return latest
    if not earliest <= number <= latest:
        losses.append(f"{bound.option} has offset {number} of {partition}, which has {earliest} to {latest}")
    return min(max(number, earliest), latest)


def _by_time(
    cluster: Cluster,
    bound: Bound,
    times: Mapping[TopicPartition, int],
    view: ClusterView,
    latest_without_match: bool,
) -> dict[TopicPartition, int]:
    found = cluster.list_offsets(times)
    missing = [partition for partition in times if found.get(partition, -1) < 0]
    if missing and bound.option.startswith("starting") and not latest_without_match:
        raise ConfigError(
            f"option {bound.option}: {describe_partitions(missing)} has no record as late as "
            f"{times[missing[0]]} ms; set startingOffsetsByTimestampStrategy=latest to begin at the end there"
        )
    return {
        partition: view.latest[partition] if partition in missing else found[partition] for partition in times
    }


def _refuse_other_partitions(bound: Bound, partitions: Offsets) -> None:
    missing = [partition for partition in partitions if partition not in bound.partitions]
    extra = [partition for partition in bound.partitions if partition not in partitions]
    if missing or extra:
        parts = []
        if missing:
            parts.append(f"omits {describe_partitions(missing)}")
        if extra:
            parts.append(f"names {describe_partitions(extra)}, not read here")
        raise ConfigError(
            f"option {bound.option} {' and '.join(parts)}: it must name each partition once"
            + ("" if bound.by_time else f" ({EARLIEST} means earliest, {LATEST} latest)")
        )


def _refuse_missing(
    cluster: Cluster, options: SourceOptions, wanted: Sequence[str], found: Mapping[str, TopicView]
) -> None:
    for topic in wanted:
        if topic not in found:
            raise ConfigError(missing_topic(cluster, topic, options.bootstrap))
    for partition in options.assigned:
        if partition.partition >= found[partition.topic].partitions:
            raise ConfigError(
                f"option assign names {partition}, but topic {partition.topic} has partitions "
                f"0 to {found[partition.topic].partitions - 1}"
            )
