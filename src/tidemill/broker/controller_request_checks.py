"""Checks the names and indexes in requests of the controller.

Every client that can connect to the inter-broker listener can send them. A topic name becomes a directory,
and a partition index the length of a list.
"""

from __future__ import annotations

from collections.abc import Generator

from tidemill.coordination.cluster_image import ClusterImage
from tidemill.model.errors import ProtocolError
from tidemill.model.topic_names import name_problem
from tidemill.wire.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrTopicState
from tidemill.wire.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataTopicState

TOPICS_PER_SLICE = 200
PARTITIONS_PER_SLICE = 2000
PARTITIONS_MAX = 1_000_000
"""Partitions of all topics of a LeaderAndIsr request, with those that it leaves out: more than a cluster
has."""
LEFT_OUT_MAX = 10_000
"""Partitions that UpdateMetadata leaves out below the highest index of a topic. A controller leaves out
none."""


def check_leader_and_isr(request: LeaderAndIsrRequest) -> Generator[None, None, None]:
    """Raises ProtocolError for an impossible topic name or partition index. Yields between topics."""
    total = 0
    for number, topic in enumerate(request.topic_states, 1):
        total += yield from _count_in_slices(topic, number)
    if total > PARTITIONS_MAX:
        raise ProtocolError(
            f"LeaderAndIsr names topics of {total} partitions; the maximum is {PARTITIONS_MAX}"
        )


def check_update_metadata(
    request: UpdateMetadataRequest, before: ClusterImage
) -> Generator[None, None, None]:
    """Raises ProtocolError as :func:`check_leader_and_isr`.

    ``before``: the image that the request changes.
    """
    left_out = 0
    for number, topic in enumerate(request.topic_states, 1):
        count = yield from _count_in_slices(topic, number)
        known = before.topic_of((topic.topic_name, topic.topic_id))
        if known is not None:
            count -= len(known.partitions)
        left_out += max(0, count - len(topic.partition_states))
    if left_out > LEFT_OUT_MAX:
        raise ProtocolError(
            f"UpdateMetadata leaves out {left_out} partitions below others; the maximum is {LEFT_OUT_MAX}"
        )


def _count_in_slices(
    topic: LeaderAndIsrTopicState | UpdateMetadataTopicState, number: int
) -> Generator[None, None, int]:
    """Returns the number of partitions of topic ``number`` of a request, with those that it leaves out.

    Raises ProtocolError for an impossible name or index. Yields before a large topic, and after some topics.
    """
    if number % TOPICS_PER_SLICE == 0 or len(topic.partition_states) > PARTITIONS_PER_SLICE:
        yield
    problem = name_problem(topic.topic_name)
    if problem:
        raise ProtocolError(f"a request of the controller names an invalid topic: {problem}")
    indexes = [one.partition_index for one in topic.partition_states]
    if min(indexes, default=0) < 0:
        raise ProtocolError(
            f"a request of the controller names partition {min(indexes)} of {topic.topic_name}"
        )
    return max(indexes, default=-1) + 1
