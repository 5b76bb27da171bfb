"""The errors of requests for a partition that is not in the transaction, in each version.

Clients treat TRANSACTION_ABORTABLE as the end of the transaction, and INVALID_TXN_STATE of TxnOffsetCommit as
that of the producer. The results are those of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from broker_cluster import until
from hostile_peers import Peer, make_topic
from test_hostile_transactions import GROUP, TRANSACTION, find_coordinator, init_producer

from record_builders import build_batch
from tidemill.model.errors import ErrorCode
from tidemill.testing import Broker
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.init_producer_id import InitProducerIdResponse
from tidemill.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidemill.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

RETRIED = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    """A client of a broker with topic ``t``."""
    with Broker({"transaction.state.log.num.partitions": "1"}) as broker:
        make_topic(broker, "t")
        with Peer(broker) as found:
            for key_type in (GROUP, TRANSACTION):
                find_coordinator(found, key_type)
            yield found


def commit_offsets(peer: Peer, name: str, producer: InitProducerIdResponse, version: int) -> int:
    """Commits an offset in the transaction. Returns the error."""
    partitions = [TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    request = TxnOffsetCommitRequest(
        transactional_id=name,
        group_id=name,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=partitions)],
    )
    response = peer.ask(ApiKey.TXN_OFFSET_COMMIT, version, request)
    return int(response.topics[0].partitions[0].error_code)


def produce(peer: Peer, name: str, producer: InitProducerIdResponse, version: int) -> int:
    """Sends a message of the transaction. Returns the error."""
    records = build_batch(
        [(0, None, b"x", None)],
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=0,
        transactional=True,
    )
    data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=records)])
    request = ProduceRequest(transactional_id=name, acks=-1, timeout_ms=10_000, topic_data=[data])
    response = peer.ask(ApiKey.PRODUCE, version, request)
    return int(response.responses[0].partition_responses[0].error_code)


Send = Callable[[Peer, str, InitProducerIdResponse, int], int]
OLD, NEW, ADDED = ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.NONE
CASES = [
    *(
        (commit_offsets, version, OLD if version < 4 else NEW if version == 4 else ADDED)
        for version in range(6)
    ),
    *(
        (produce, version, OLD if version < 11 else NEW if version == 11 else ADDED)
        for version in range(3, 13)
    ),
]


@pytest.mark.parametrize(("send", "version", "expected"), CASES)
def test_a_request_outside_of_the_transaction_is_refused_in_the_words_of_its_version(
    peer: Peer, send: Send, version: int, expected: ErrorCode
) -> None:
    name = f"{send.__name__}-{version}"
    producer = init_producer(peer, name)
    codes: list[int] = []

    def is_answered() -> bool:
        codes.append(send(peer, name, producer, version))
        return codes[-1] not in RETRIED

    until(is_answered, "the coordinator has answered")
    assert codes[-1] == expected
