"""Requests of transactions with many items, or from producers that are none, do not delay other clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker_cluster import until
from hostile_peers import Peer, check_log, make_topic, under_attack

from tidemill.model.errors import ErrorCode
from tidemill.testing import Broker
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from tidemill.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from tidemill.wire.messages.describe_transactions import DescribeTransactionsRequest
from tidemill.wire.messages.end_txn import EndTxnRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from tidemill.wire.messages.list_transactions import ListTransactionsRequest
from tidemill.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidemill.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

GROWTH_MB_MAX = 120
"""Includes the free memory of Python, which it returns late."""
RETRIABLE = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
GROUP, TRANSACTION = 0, 1
PARTITIONS = 500
MANY = 90_000
"""Close to the limit for the elements of a request."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """The attacked broker."""
    with Broker({"transaction.state.log.num.partitions": "3"}) as one:
        make_topic(one, "wide", PARTITIONS)
        with Peer(one) as peer:
            for key_type in (GROUP, TRANSACTION):
                find_coordinator(peer, key_type)
        yield one
        check_log(one)


def find_coordinator(peer: Peer, key_type: int) -> None:
    """Creates the topic of the coordinator, and waits until its partitions are loaded."""
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["any"])
    until(
        lambda: peer.ask(ApiKey.FIND_COORDINATOR, 4, request).coordinators[0].error_code == 0,
        "it has a coordinator",
    )


def init_producer(peer: Peer, name: str, timeout_ms: int = 60_000) -> InitProducerIdResponse:
    """Returns the producer of a transactional id."""
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms)
    responses: list[InitProducerIdResponse] = []

    def has_identity() -> bool:
        responses.append(peer.ask(ApiKey.INIT_PRODUCER_ID, 4, request))
        assert responses[-1].error_code in (0, *RETRIABLE)
        return responses[-1].error_code == 0

    until(has_identity, "it has a producer id")
    return responses[-1]


def add_request(name: str, producer: InitProducerIdResponse, indexes: list[int]) -> AddPartitionsToTxnRequest:
    """Returns a client's request for partitions of the topic."""
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name="wide", partitions=indexes)],
    )


def marker(producer_id: int, indexes: list[int], epoch: int = 0) -> WritableTxnMarker:
    """Returns an abort marker for partitions of the topic."""
    return WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name="wide", partition_indexes=indexes)],
    )


def test_a_transaction_takes_all_partitions_of_a_topic(broker: Broker) -> None:
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker, 60) as peer:
        producer = init_producer(peer, "wide")
        request = add_request("wide", producer, list(range(PARTITIONS)) * (MANY // PARTITIONS))
        (topic,) = peer.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request).results_by_topic_v3_and_below
        assert [one.partition_error_code for one in topic.results_by_partition] == [0] * MANY
        end = EndTxnRequest(
            transactional_id="wide",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            committed=True,
        )
        assert peer.ask(ApiKey.END_TXN, 3, end).error_code == 0
        # The markers of the transaction are written to all partitions before the next one.
        assert init_producer(peer, "wide").producer_epoch == producer.producer_epoch + 1


def test_a_partition_that_does_not_exist_leaves_all_others_out(broker: Broker) -> None:
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker, 60) as peer:
        producer = init_producer(peer, "absent")
        absent = [0, PARTITIONS, -1, 0x7FFFFFFF, *range(PARTITIONS, MANY)]
        request = add_request("absent", producer, absent)
        (topic,) = peer.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request).results_by_topic_v3_and_below
        codes = [one.partition_error_code for one in topic.results_by_partition]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert codes == [ErrorCode.OPERATION_NOT_ATTEMPTED] + [unknown] * (len(absent) - 1)
        batched = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id="absent",
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    verify_only=verify_only,
                    topics=[AddPartitionsToTxnTopic(name="wide", partitions=[PARTITIONS])],
                )
                for verify_only in (False, True)
            ]
        )
        for one in peer.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 5, batched).results_by_transaction:
            (result,) = one.topic_results[0].results_by_partition
            assert result.partition_error_code == unknown
        (described,) = peer.ask(
            ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(transactional_ids=["absent"])
        ).transaction_states
        assert (described.transaction_state, described.topics) == ("Empty", [])


def test_many_unknown_transactions_of_one_request_are_refused(broker: Broker) -> None:
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker, 60) as peer:
        transactions = [
            AddPartitionsToTxnTransaction(
                transactional_id=f"unknown-{number}",
                producer_id=number,
                producer_epoch=0,
                verify_only=number % 2 == 0,
                topics=[AddPartitionsToTxnTopic(name="wide", partitions=[0])],
            )
            for number in range(MANY // 3)
        ]
        request = AddPartitionsToTxnRequest(transactions=transactions)
        results = peer.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 5, request).results_by_transaction
        assert len(results) == len(transactions)
        codes = {one.topic_results[0].results_by_partition[0].partition_error_code for one in results}
        assert codes == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
        listed = peer.ask(ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest()).transaction_states
        assert not [one for one in listed if one.transactional_id.startswith("unknown")]


def test_markers_for_many_partitions_are_written_in_slices(broker: Broker) -> None:
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker, 60) as peer:
        present, absent = list(range(PARTITIONS)), list(range(PARTITIONS, MANY - PARTITIONS))
        request = WriteTxnMarkersRequest(markers=[marker(7_000_000, present + absent)])
        (result,) = peer.ask(ApiKey.WRITE_TXN_MARKERS, 1, request).markers
        codes = [one.error_code for one in result.topics[0].partitions]
        assert codes == [0] * len(present) + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * len(absent)


def test_markers_of_many_producers_have_their_own_results(broker: Broker) -> None:
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker, 60) as peer:
        # Two markers of one producer differ in their results: the second has an older epoch.
        markers = [marker(8_000_000 + number // 2, [0, 1], 1 - number % 2) for number in range(4_000)]
        results = peer.ask(ApiKey.WRITE_TXN_MARKERS, 1, WriteTxnMarkersRequest(markers=markers)).markers
        assert [one.producer_id for one in results] == [one.producer_id for one in markers]
        codes = [{part.error_code for part in one.topics[0].partitions} for one in results]
        assert codes == [{0}, {ErrorCode.INVALID_PRODUCER_EPOCH}] * 2_000


def test_offsets_of_many_partitions_in_a_transaction(broker: Broker) -> None:
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker, 60) as peer:
        producer = init_producer(peer, "offsets")
        identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        added = AddOffsetsToTxnRequest(transactional_id="offsets", group_id="group", **identity)
        assert peer.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, added).error_code == 0
        partitions = [
            TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=index)
            for index in range(MANY)
        ]
        for generation, member, expected in ((-1, "", 0), (7, "unknown", ErrorCode.UNKNOWN_MEMBER_ID)):
            request = TxnOffsetCommitRequest(
                transactional_id="offsets",
                group_id="group",
                generation_id=generation,
                member_id=member,
                topics=[TxnOffsetCommitRequestTopic(name="wide", partitions=partitions)],
                **identity,
            )
            (topic,) = peer.ask(ApiKey.TXN_OFFSET_COMMIT, 3, request).topics
            codes = [one.error_code for one in topic.partitions]
            assert set(codes[PARTITIONS:]) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
            assert set(codes[:PARTITIONS]) == {expected}
        end = EndTxnRequest(transactional_id="offsets", committed=True, **identity)
        assert peer.ask(ApiKey.END_TXN, 3, end).error_code == 0


def test_filters_of_a_listing_take_little_time(broker: Broker) -> None:
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker, 60) as peer:
        init_producer(peer, "listed")
        states = [f"state-{number}" for number in range(MANY)]
        found = peer.ask(ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest(state_filters=states))
        assert len(found.unknown_state_filters) == MANY
        producers = ListTransactionsRequest(producer_id_filters=list(range(-MANY, 0)))
        assert peer.ask(ApiKey.LIST_TRANSACTIONS, 2, producers).transaction_states == []
        # A pattern takes exponential time in an engine with backtracking, and much memory in others.
        for pattern, code in (
            ("(l|li|lis|list)+" * 20 + "x", 0),
            ("(((a{1,100}){1,100}){1,100}){1,100}", ErrorCode.INVALID_REGULAR_EXPRESSION),
            ("(", ErrorCode.INVALID_REGULAR_EXPRESSION),
            ("a" * 32_000, 0),
        ):
            request = ListTransactionsRequest(transactional_id_pattern=pattern)
            assert peer.ask(ApiKey.LIST_TRANSACTIONS, 2, request).error_code == code
        described = DescribeTransactionsRequest(transactional_ids=["listed"] * MANY)
        assert len(peer.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, described).transaction_states) == 1


def test_transactions_end_when_their_producers_are_gone(broker: Broker) -> None:
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker, 60) as peer:
        producers = [init_producer(peer, f"gone-{number}", 60_000) for number in range(200)]
        for number, producer in enumerate(producers):
            request = add_request(f"gone-{number}", producer, list(range(0, PARTITIONS, 100)))
            peer.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, request)
        # Later instances of the producers abort the open transactions, all of them at once.
        for number, producer in enumerate(producers):
            again = init_producer(peer, f"gone-{number}")
            assert again.producer_id == producer.producer_id
            assert again.producer_epoch > producer.producer_epoch
