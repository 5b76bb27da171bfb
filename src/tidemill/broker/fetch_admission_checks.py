"""The refusals of Fetch requests, which are checked before a partition is read. Compiled.

:func:`refusal_of_partition` is the table of all refusals.

A refused partition has the error as its result. The error completes the fetch, and does not affect the other
partitions. An admitted partition is read by :mod:`tidemill.broker.fetch_reader`.

Two errors are not in the table. OFFSET_OUT_OF_RANGE is a result of the read. The partition refuses a fetch of
a follower while it records the fetch (:meth:`Partition.fetched_by`). The errors of a session
(:meth:`FetchSessions.find`) refuse the request.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from tidemill.broker.fetch_partition_data import FetchPartitionData, LogReadResults
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.records.batch import ZSTD
from tidemill.replication.delayed_operations import CONSUMER
from tidemill.replication.hosted_topics import TopicEntry
from tidemill.wire.fetch_layout import FetchRequest

ZSTD_FROM: Final = 10
ANY_REPLICA_FROM: Final = 11
"""From this version on consumers may read from followers (KIP-392)."""


@mypyc_attr(free_list_len=1)
class FetchAdmission:
    """The facts of one look-up that the checks use."""

    def __init__(
        self,
        request: FetchRequest,
        results: LogReadResults,
        topics: dict[bytes, TopicEntry],
        is_epoch_stale: bool,
    ) -> None:
        self.request = request
        self.results = results
        """The results so far, with the limits of the response."""
        self.topics = topics
        """The topics of this broker by the keys of the request: names or ids."""
        self.is_epoch_stale = is_epoch_stale
        """The follower has registered again since it sent the request."""


def unknown_partition_error(admission: FetchAdmission, data: FetchPartitionData) -> KafkaError | None:
    """Returns an error unless this broker has a replica of the partition."""
    if data.partition is not None:
        return None
    # A constant text: the key may be long, and one request may name it for many partitions.
    return KafkaError(
        "this broker does not have the partition",
        ErrorCode.UNKNOWN_TOPIC_ID
        if admission.request.by_id and data.requested.key not in admission.topics
        else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )


def leader_error(request: FetchRequest, data: FetchPartitionData) -> KafkaError | None:
    """Returns an error for an unreadable log, on a broker that does not lead, or for another leader epoch.

    Consumers may read from a follower as well, from version 11 on.
    """
    partition = data.partition
    if partition is None:
        return None
    try:
        if request.replica_id == CONSUMER and request.version >= ANY_REPLICA_FROM:
            partition.check_readable(data.requested.leader_epoch)
        else:
            partition.check_leader(data.requested.leader_epoch)
    except KafkaError as error:
        return error
    return None


def broker_epoch_error(admission: FetchAdmission) -> KafkaError | None:
    """Returns an error if the follower has registered again since it sent the request.

    It may have lost the records that it had when it sent the request.

    Source: Apache Kafka, ``Replica.updateFetchStateOrThrow``.
    """
    if not admission.is_epoch_stale:
        return None
    request = admission.request
    return KafkaError(
        f"broker {request.replica_id} has registered again since its epoch {request.replica_epoch}",
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )


def zstd_error(admission: FetchAdmission, data: FetchPartitionData) -> KafkaError | None:
    """Returns an error if clients of the request's version do not know the codec of the topic, zstd."""
    version = admission.request.version
    partition = data.partition
    if (
        version >= ZSTD_FROM
        or not admission.results.has_room
        or partition is None
        or partition.message_format.codec != ZSTD
    ):
        return None
    return KafkaError(
        f"{partition.topic} is compressed with zstd, which Fetch {version} does not know",
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    )


def refusal_of_partition(admission: FetchAdmission, data: FetchPartitionData) -> KafkaError | None:
    """Returns the first error of the table for the partition of ``data``; None admits it.

    To add a refusal (by access rules or a quota), write a function that returns its error, and call it here
    before the checks that it precedes. A check of access belongs between those for existence and for
    leadership, so that a client without access gets no information about the partition.
    """
    return (
        unknown_partition_error(admission, data)
        or leader_error(admission.request, data)
        or broker_epoch_error(admission)
        or zstd_error(admission, data)
    )
