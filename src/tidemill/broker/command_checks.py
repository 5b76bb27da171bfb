"""What a command may name: whoever reaches the listener of the brokers can send one.

A name becomes a directory, and a number the length of a list.
"""

from __future__ import annotations

from collections.abc import Generator

from tidemill.coordination.image import ClusterImage
from tidemill.model.errors import ProtocolError
from tidemill.model.topic_names import name_problem
from tidemill.wire.messages.leader_and_isr import LeaderAndIsrRequest
from tidemill.wire.messages.update_metadata import UpdateMetadataRequest

TOPICS_A_PAUSE = 200
PARTITIONS_A_PAUSE = 2000
PARTITIONS_MAX = 1_000_000
"""Of all topics that a command names replicas of, with those that it leaves out: more than a cluster has."""
LEFT_OUT_MAX = 10_000
"""Partitions that UpdateMetadata leaves out although it names later ones: a controller tells of all."""


def checking_replicas(request: LeaderAndIsrRequest) -> Generator[None, None, None]:
    """Raises ProtocolError for names and numbers that no topic has; it pauses after some topics each."""
    total = 0
    for number, topic in enumerate(request.topic_states, 1):
        if number % TOPICS_A_PAUSE == 0:
            yield
        if len(topic.partition_states) > PARTITIONS_A_PAUSE:
            yield
        _check_name(topic.topic_name)
        total += _count(topic.topic_name, [one.partition_index for one in topic.partition_states])
    if total > PARTITIONS_MAX:
        raise ProtocolError(f"LeaderAndIsr names topics of {total} partitions; {PARTITIONS_MAX} are taken")


def checking_metadata(request: UpdateMetadataRequest, before: ClusterImage) -> Generator[None, None, None]:
    """As :func:`checking_replicas`. ``before``: what is known so far."""
    left_out = 0
    for number, topic in enumerate(request.topic_states, 1):
        if number % TOPICS_A_PAUSE == 0:
            yield
        if len(topic.partition_states) > PARTITIONS_A_PAUSE:
            yield
        name = topic.topic_name
        _check_name(name)
        count = _count(name, [one.partition_index for one in topic.partition_states])
        known = before.topics.get(name)
        if known is not None and known.topic_id == topic.topic_id:
            count -= len(known.partitions)
        left_out += max(0, count - len(topic.partition_states))
    if left_out > LEFT_OUT_MAX:
        raise ProtocolError(
            f"UpdateMetadata leaves out {left_out} partitions before others; {LEFT_OUT_MAX} are taken"
        )


def _check_name(name: str) -> None:
    problem = name_problem(name)
    if problem:
        raise ProtocolError(f"a command names a topic that cannot be: {problem}")


def _count(name: str, indexes: list[int]) -> int:
    """How many partitions a topic has that has these."""
    if min(indexes, default=0) < 0:
        raise ProtocolError(f"a command names partition {min(indexes)} of {name}: they are numbered from 0")
    return max(indexes, default=-1) + 1
