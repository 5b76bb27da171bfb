"""Every transaction API in every supported version: a transaction that only uses this version of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from test_clients_versions import message, produce, topic_id, versions
from wire_peer import WirePeer

from record_builders import build_batch
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey

NewTopic = Callable[..., str]
NewName = Callable[[str], str]
BROKERS_ADD_FROM = 4
"""From this version on AddPartitionsToTxn is a request of a broker."""
EPOCH_BUMP_FROM = 5
"""From this version on the end of a transaction begins another epoch."""


class Producer(NamedTuple):
    """A transactional id and its producer."""

    name: str
    producer_id: int
    epoch: int


@pytest.fixture
def peer(bootstrap: str) -> Iterator[WirePeer]:
    with WirePeer(bootstrap) as connected:
        yield connected


def until_done(ask: Callable[[], Any]) -> Any:
    """Repeats a request while the transaction before it ends, or the coordinator is loaded."""
    waits = (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
    for _ in range(1000):
        answer = ask()
        if answer.error_code not in waits:
            return answer
    raise AssertionError(answer)


def init(peer: WirePeer, name: str, version: int = 4, **fields: Any) -> Any:
    """Returns the response of InitProducerId."""
    find = message("find_coordinator", "FindCoordinatorRequest", coordinator_keys=[name], key_type=1)
    until_done(lambda: peer.ask(ApiKey.FIND_COORDINATOR, 4, find).coordinators[0])
    request = message(
        "init_producer_id",
        "InitProducerIdRequest",
        transactional_id=name,
        transaction_timeout_ms=60_000,
        **fields,
    )
    return until_done(lambda: peer.ask(ApiKey.INIT_PRODUCER_ID, version, request))


@pytest.fixture
def producer(peer: WirePeer, new_name: NewName) -> Producer:
    name = new_name("transactional")
    begun = init(peer, name)
    assert begun.error_code == 0
    return Producer(name, begun.producer_id, begun.producer_epoch)


def add(peer: WirePeer, producer: Producer, topic: str, *partitions: int, version: int = 3) -> list[int]:
    """Adds partitions to the transaction. Returns the error of each."""
    topics = [
        message("add_partitions_to_txn", "AddPartitionsToTxnTopic", name=topic, partitions=[*partitions])
    ]
    if version < BROKERS_ADD_FROM:
        request = message(
            "add_partitions_to_txn",
            "AddPartitionsToTxnRequest",
            v3_and_below_transactional_id=producer.name,
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=topics,
        )
        found = peer.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, request).results_by_topic_v3_and_below
    else:
        transaction = message(
            "add_partitions_to_txn",
            "AddPartitionsToTxnTransaction",
            transactional_id=producer.name,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            topics=topics,
        )
        request = message("add_partitions_to_txn", "AddPartitionsToTxnRequest", transactions=[transaction])
        (result,) = peer.ask(ApiKey.ADD_PARTITIONS_TO_TXN, version, request).results_by_transaction
        found = result.topic_results
    return [one.partition_error_code for one in found[0].results_by_partition]


def send(peer: WirePeer, producer: Producer, topic: str, value: bytes) -> int:
    """Writes a message of the transaction. Returns the error."""
    records = build_batch(
        [(0, None, value, [])],
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=0,
        transactional=True,
    )
    partition = message("produce", "PartitionProduceData", index=0, records=records)
    data = message("produce", "TopicProduceData", name=topic, partition_data=[partition])
    request = message(
        "produce",
        "ProduceRequest",
        transactional_id=producer.name,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[data],
    )
    error: int = peer.ask(ApiKey.PRODUCE, 11, request).responses[0].partition_responses[0].error_code
    return error


def end(peer: WirePeer, producer: Producer, committed: bool, version: int = 3) -> Any:
    """Ends the transaction."""
    request = message(
        "end_txn",
        "EndTxnRequest",
        transactional_id=producer.name,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        committed=committed,
    )
    return until_done(lambda: peer.ask(ApiKey.END_TXN, version, request))


def describe(peer: WirePeer, producer: Producer) -> Any:
    """Describes the transaction."""
    request = message(
        "describe_transactions", "DescribeTransactionsRequest", transactional_ids=[producer.name]
    )
    (found,) = peer.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, request).transaction_states
    return found


def committed_values(peer: WirePeer, topic: str) -> tuple[int, int]:
    """The last stable offset, and the number of aborted transactions."""
    partition = message("fetch", "FetchPartition", partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = message(
        "fetch",
        "FetchRequest",
        min_bytes=1,
        isolation_level=1,
        topics=[message("fetch", "FetchTopic", topic=topic, partitions=[partition])],
    )
    found = peer.ask(ApiKey.FETCH, 11, request).responses[0].partitions[0]
    return found.last_stable_offset, len(found.aborted_transactions or [])


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
def test_init_producer_id_is_served_in_every_version(peer: WirePeer, new_name: NewName, version: int) -> None:
    name = new_name("transactional")
    first, second = init(peer, name, version), init(peer, name, version)
    assert (first.error_code, second.error_code) == (0, 0)
    assert second.producer_id == first.producer_id >= 0
    assert (first.producer_epoch, second.producer_epoch) == (0, 1)
    if version >= 3:
        expected = {"producer_id": second.producer_id, "producer_epoch": 1}
        assert init(peer, name, version, **expected).producer_epoch == 2
        fenced = init(peer, name, version, producer_id=second.producer_id, producer_epoch=0)
        assert fenced.error_code == (
            ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
        )
    request = message("init_producer_id", "InitProducerIdRequest", transactional_id="", producer_id=-1)
    assert peer.ask(ApiKey.INIT_PRODUCER_ID, version, request).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", versions(ApiKey.ADD_PARTITIONS_TO_TXN))
def test_add_partitions_to_txn_is_served_in_every_version(
    peer: WirePeer, producer: Producer, new_topic: NewTopic, version: int
) -> None:
    topic = new_topic(partitions=2)
    assert add(peer, producer, topic, 0, 1, version=version) == [0, 0]
    found = describe(peer, producer)
    assert found.transaction_state == "Ongoing"
    assert [(one.topic, one.partitions) for one in found.topics] == [(topic, [0, 1])]
    unknown = [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert add(peer, producer, topic, 0, 9, version=version) == unknown
    fenced = add(peer, producer._replace(epoch=7), topic, 0, version=version)
    assert fenced == [ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH]


@pytest.mark.parametrize("version", versions(ApiKey.END_TXN))
@pytest.mark.parametrize("committed", [True, False])
def test_end_txn_is_served_in_every_version(
    peer: WirePeer, producer: Producer, new_topic: NewTopic, version: int, committed: bool
) -> None:
    topic = new_topic()
    assert add(peer, producer, topic, 0) == [0]
    assert send(peer, producer, topic, b"value") == 0
    assert committed_values(peer, topic) == (0, 0)
    ended = end(peer, producer, committed, version)
    assert ended.error_code == 0
    if version >= EPOCH_BUMP_FROM:
        assert (ended.producer_id, ended.producer_epoch) == (producer.producer_id, producer.epoch + 1)
    repeated = end(peer, producer, committed, version)
    assert repeated.error_code == 0
    assert describe(peer, producer).transaction_state == ("CompleteCommit" if committed else "CompleteAbort")
    assert committed_values(peer, topic) == (2, 0 if committed else 1)
    other = end(peer, producer, not committed, version)
    assert other.error_code == ErrorCode.INVALID_TXN_STATE


def commit_offset(
    peer: WirePeer, producer: Producer, group: str, topic: str, offset: int, version: int
) -> int:
    """Commits an offset in the transaction. Returns the error."""
    partition = message(
        "txn_offset_commit", "TxnOffsetCommitRequestPartition", partition_index=0, committed_offset=offset
    )
    topics = [message("txn_offset_commit", "TxnOffsetCommitRequestTopic", name=topic, partitions=[partition])]
    request = message(
        "txn_offset_commit",
        "TxnOffsetCommitRequest",
        transactional_id=producer.name,
        group_id=group,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=topics,
    )
    error: int = peer.ask(ApiKey.TXN_OFFSET_COMMIT, version, request).topics[0].partitions[0].error_code
    return error


def committed_offset(peer: WirePeer, group: str, topic: str) -> tuple[int, int]:
    """The error and the offset of a fetch that waits for no transaction."""
    topics = [message("offset_fetch", "OffsetFetchRequestTopic", name=topic, partition_indexes=[0])]
    request = message(
        "offset_fetch", "OffsetFetchRequest", group_id=group, topics=topics, require_stable=True
    )
    (one,) = peer.ask(ApiKey.OFFSET_FETCH, 7, request).topics[0].partitions
    return one.error_code, one.committed_offset


def find_group_coordinator(peer: WirePeer, group: str) -> None:
    """Waits until the group has a coordinator: the first one creates ``__consumer_offsets``."""
    find = message("find_coordinator", "FindCoordinatorRequest", coordinator_keys=[group])
    until_done(lambda: peer.ask(ApiKey.FIND_COORDINATOR, 4, find).coordinators[0])


def add_offsets(peer: WirePeer, producer: Producer, group: str, version: int = 3) -> int:
    """Adds a group to the transaction. Returns the error."""
    find_group_coordinator(peer, group)
    request = message(
        "add_offsets_to_txn",
        "AddOffsetsToTxnRequest",
        transactional_id=producer.name,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id=group,
    )
    error: int = peer.ask(ApiKey.ADD_OFFSETS_TO_TXN, version, request).error_code
    return error


@pytest.mark.parametrize("version", versions(ApiKey.ADD_OFFSETS_TO_TXN))
def test_add_offsets_to_txn_is_served_in_every_version(
    peer: WirePeer, producer: Producer, new_name: NewName, version: int
) -> None:
    assert add_offsets(peer, producer, new_name("group"), version) == 0
    (topic,) = describe(peer, producer).topics
    assert topic.topic == "__consumer_offsets"
    fenced = add_offsets(peer, producer._replace(epoch=7), new_name("group"), version)
    assert fenced == (ErrorCode.PRODUCER_FENCED if version >= 2 else ErrorCode.INVALID_PRODUCER_EPOCH)


@pytest.mark.parametrize("version", versions(ApiKey.TXN_OFFSET_COMMIT))
def test_txn_offset_commit_is_served_in_every_version(
    peer: WirePeer, producer: Producer, new_topic: NewTopic, new_name: NewName, version: int
) -> None:
    topic, group = new_topic(), new_name("group")
    find_group_coordinator(peer, group)
    if version < EPOCH_BUMP_FROM:
        assert add_offsets(peer, producer, group) == 0
    assert commit_offset(peer, producer, group, topic, 5, version) == 0
    assert committed_offset(peer, group, topic)[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert end(peer, producer, True).error_code == 0
    assert init(peer, producer.name).error_code == 0, "the markers are written"
    assert committed_offset(peer, group, topic) == (0, 5)


@pytest.mark.parametrize("version", versions(ApiKey.WRITE_TXN_MARKERS))
def test_write_txn_markers_is_served_in_every_version(
    peer: WirePeer, producer: Producer, new_topic: NewTopic, version: int
) -> None:
    topic = new_topic()
    assert add(peer, producer, topic, 0) == [0]
    assert send(peer, producer, topic, b"value") == 0
    marked = message("write_txn_markers", "WritableTxnMarkerTopic", name=topic, partition_indexes=[0, 9])
    marker = message(
        "write_txn_markers",
        "WritableTxnMarker",
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        topics=[marked],
        coordinator_epoch=1,
    )
    request = message("write_txn_markers", "WriteTxnMarkersRequest", markers=[marker])
    (result,) = peer.ask(ApiKey.WRITE_TXN_MARKERS, version, request).markers
    errors = [one.error_code for one in result.topics[0].partitions]
    assert errors == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert committed_values(peer, topic) == (2, 1)


def test_describe_transactions_is_served_in_every_version(peer: WirePeer, producer: Producer) -> None:
    assert versions(ApiKey.DESCRIBE_TRANSACTIONS) == [0]
    found = describe(peer, producer)
    assert (found.transaction_state, found.producer_id) == ("Empty", producer.producer_id)
    unknown = describe(peer, producer._replace(name=f"{producer.name}-unknown"))
    assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


@pytest.mark.parametrize("version", versions(ApiKey.LIST_TRANSACTIONS))
def test_list_transactions_is_served_in_every_version(
    peer: WirePeer, producer: Producer, new_topic: NewTopic, version: int
) -> None:
    def listed(**fields: Any) -> dict[str, str]:
        request = message("list_transactions", "ListTransactionsRequest", **fields)
        found = peer.ask(ApiKey.LIST_TRANSACTIONS, version, request)
        assert found.error_code == 0
        return {one.transactional_id: one.transaction_state for one in found.transaction_states}

    assert listed()[producer.name] == "Empty"
    assert add(peer, producer, new_topic(), 0) == [0]
    ongoing = {"state_filters": ["Ongoing"], "producer_id_filters": [producer.producer_id]}
    assert listed(**ongoing) == {producer.name: "Ongoing"}
    if version >= 1:
        assert producer.name not in listed(duration_filter=60_000)
        assert listed(**ongoing, duration_filter=0) == {producer.name: "Ongoing"}
    if version >= 2:
        pattern = producer.name.replace("transactional", "[a-z]+")
        assert listed(transactional_id_pattern=pattern) == {producer.name: "Ongoing"}
        assert listed(transactional_id_pattern="transactional") == {}


def test_messages_outside_of_a_transaction_are_not_delayed_by_it(
    peer: WirePeer, producer: Producer, new_topic: NewTopic
) -> None:
    topic = new_topic()
    assert topic_id(peer, topic)
    assert add(peer, producer, topic, 0) == [0]
    assert produce(peer, topic, b"before").error_code == 0
    assert committed_values(peer, topic) == (1, 0)
    assert send(peer, producer, topic, b"open") == 0
    assert produce(peer, topic, b"behind").error_code == 0
    assert committed_values(peer, topic) == (1, 0)
    assert end(peer, producer, False).error_code == 0
    assert init(peer, producer.name).error_code == 0, "the markers are written"
    assert committed_values(peer, topic) == (4, 1)
