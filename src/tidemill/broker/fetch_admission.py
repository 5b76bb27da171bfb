"""Admission of the partitions of Fetch requests: the table of refusals. Compiled.

A refused partition has the error as its result. The error completes the fetch, and does not affect the other
partitions. An admitted partition is read by :mod:`tidemill.broker.fetch_reader`.

Two errors are results of the read, and are not in the table. A diverging log takes precedence over
OFFSET_OUT_OF_RANGE. The broker epoch of a follower is compared after the read, because every error of the
partition takes precedence over it. The errors of a session (:meth:`FetchSessions.find`) refuse the request.
"""

from __future__ import annotations

from typing import ClassVar, Final

from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.records.batch import ZSTD
from tidemill.replication.delayed_operations import CONSUMER
from tidemill.replication.partition import Partition
from tidemill.wire.fetch_layout import FetchRequest, RequestedPartition

ZSTD_FROM: Final = 10
ANY_REPLICA_FROM: Final = 11
"""From this version on consumers may read from followers (KIP-392)."""


class AdmissionCheck:
    """A reason to refuse a partition."""

    name: ClassVar[str] = ""

    def refuse(
        self,
        request: FetchRequest,
        requested: RequestedPartition,
        is_topic_known: bool,
        partition: Partition | None,
        has_room: bool,
    ) -> KafkaError | None:
        """Returns the error of a partition; None admits it.

        ``is_topic_known``: this broker has a partition of the topic. ``partition`` is None for a partition
        without a replica here. ``has_room``: the response may have records of the partition.
        """
        raise NotImplementedError


class UnknownPartitionCheck(AdmissionCheck):
    """This broker has a replica of the partition."""

    name = "unknown partition"

    def refuse(
        self,
        request: FetchRequest,
        requested: RequestedPartition,
        is_topic_known: bool,
        partition: Partition | None,
        has_room: bool,
    ) -> KafkaError | None:
        if partition is not None:
            return None
        # A constant text: the key may be long, and one request may name it for many partitions.
        return KafkaError(
            "this broker does not have the partition",
            ErrorCode.UNKNOWN_TOPIC_ID
            if request.by_id and not is_topic_known
            else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        )


class LeaderCheck(AdmissionCheck):
    """The log is readable, this broker leads the partition, and the client has the current leader epoch.

    Consumers may read from a follower as well, from version 11 on.
    """

    name = "leader"

    def refuse(
        self,
        request: FetchRequest,
        requested: RequestedPartition,
        is_topic_known: bool,
        partition: Partition | None,
        has_room: bool,
    ) -> KafkaError | None:
        if partition is None:
            return None
        try:
            if request.replica_id == CONSUMER and request.version >= ANY_REPLICA_FROM:
                partition.check_readable(requested.leader_epoch)
            else:
                partition.check_leader(requested.leader_epoch)
        except KafkaError as error:
            return error
        return None


class ZstdCheck(AdmissionCheck):
    """Clients of the request's version know zstd, or the response has no records of a topic with zstd."""

    name = "zstd"

    def refuse(
        self,
        request: FetchRequest,
        requested: RequestedPartition,
        is_topic_known: bool,
        partition: Partition | None,
        has_room: bool,
    ) -> KafkaError | None:
        if (
            request.version >= ZSTD_FROM
            or not has_room
            or partition is None
            or partition.message_format.codec != ZSTD
        ):
            return None
        return KafkaError(
            f"{partition.topic} is compressed with zstd, which Fetch {request.version} does not know",
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        )


CHECKS: Final[list[AdmissionCheck]] = [
    UnknownPartitionCheck(),
    LeaderCheck(),
    ZstdCheck(),
]
"""All refusals, in the order of their precedence: the first error is the result of the partition.

To add a refusal (by access rules or a quota), write a subclass of :class:`AdmissionCheck`, and add it here
before the checks that it precedes. A check of access belongs between those for existence and for leadership,
so that a client without access gets no information about the partition.
"""
