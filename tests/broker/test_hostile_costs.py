"""Small frames with expensive requests: work, memory and responses are limited, and others wait little.

The counts are possible in a frame of a few megabytes; the times are for plain Python on a busy machine.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hostile_frames import framed, produce_frame
from hostile_peers import Peer, check_log, fetch_request, make_topic, under_attack

from tidemill.broker.kafka_apis import OTHER_REQUEST_BYTES_MAX
from tidemill.model.errors import ErrorCode
from tidemill.records import batch as layout
from tidemill.records.builder import BatchBuilder
from tidemill.records.checksum import crc32c
from tidemill.records.compression import compress
from tidemill.testing import Broker
from tidemill.wire.apis import API, ApiKey
from tidemill.wire.decoding import REQUEST_ELEMENTS_MAX
from tidemill.wire.header import decode_response, encode_request
from tidemill.wire.hot_path_codec import ITEMS_MAX
from tidemill.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tidemill.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidemill.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from tidemill.wire.messages.describe_groups import DescribeGroupsRequest
from tidemill.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tidemill.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidemill.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tidemill.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

GROWTH_MB_MAX = 120
"""Includes the free memory of Python, which it returns late."""
TOO_MANY = 300_000
REFUSED = (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE, ErrorCode.MESSAGE_TOO_LARGE)
LONG = "x" * 32_000
"""A name of the maximum length of a protocol string, which an error text with the name exceeds."""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """The attacked broker."""
    with Broker({"auto.create.topics.enable": "true"}) as one:
        yield one
        check_log(one)


def body(key: int, version: int, fields: bytes) -> bytes:
    """Returns a request from its encoded fields."""
    tags = b"\0" if API[key].is_flexible(version) else b""
    return framed(struct.pack(">hhih", key, version, 1, -1) + tags + fields)


def uvarint(number: int) -> bytes:
    """Encodes a compact length."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


CROWDED = {
    "Metadata of empty names": body(3, 8, struct.pack(">i", TOO_MANY) + b"\0\0" * TOO_MANY + b"\0\0\0"),
    "OffsetFetch of partitions": body(
        9, 7, b"\2g\2\2t" + uvarint(TOO_MANY + 1) + b"\0\0\0\0" * TOO_MANY + b"\0\0\0"
    ),
    "OffsetFetch of groups": body(9, 8, uvarint(TOO_MANY + 1) + b"\2g\0\0" * TOO_MANY + b"\0\0"),
    "LeaveGroup of members": body(13, 4, b"\2g" + uvarint(TOO_MANY + 1) + b"\1\0\0" * TOO_MANY + b"\0"),
    "DescribeConfigs of resources": body(32, 4, uvarint(TOO_MANY + 1) + b"\2\2t\0\0" * TOO_MANY + b"\1\1\0"),
    "Produce of partitions": body(
        0,
        9,
        b"\0"
        + struct.pack(">hi", 1, 1000)
        + b"\2\2t"
        + uvarint(TOO_MANY + 1)
        + b"\0\0\0\0\1\0" * TOO_MANY
        + b"\0\0",
    ),
    "Produce of topics": body(
        0, 3, b"\xff\xff" + struct.pack(">hii", 1, 1000, TOO_MANY) + b"\0\0\0\0\0\0" * TOO_MANY
    ),
    "Fetch of partitions": body(
        1,
        4,
        struct.pack(">iiiib", -1, 500, 1, 1000, 0)
        + b"\0\0\0\1\0\1t"
        + struct.pack(">i", TOO_MANY)
        + struct.pack(">iqi", 0, 0, 100) * TOO_MANY,
    ),
    "Fetch that forgets partitions": body(
        1,
        7,
        struct.pack(">iiiibii", -1, 500, 1, 1000, 0, 1, 1)
        + struct.pack(">ii", 0, 1)
        + b"\0\1t"
        + struct.pack(">i", TOO_MANY)
        + b"\0\0\0\0" * TOO_MANY,
    ),
}


@pytest.mark.parametrize("name", CROWDED)
def test_too_many_items_close_the_connection(broker: Broker, name: str) -> None:
    assert max(REQUEST_ELEMENTS_MAX, ITEMS_MAX) < TOO_MANY
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker) as peer:
        peer.socket.sendall(CROWDED[name])
        assert peer.is_closed()


def test_requests_without_records_have_a_lower_size_limit(broker: Broker) -> None:
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker) as peer:
        peer.socket.sendall(body(11, 0, bytes(OTHER_REQUEST_BYTES_MAX)))
        assert peer.is_closed()
    assert f"the limit without records is {OTHER_REQUEST_BYTES_MAX}" in broker.log


def test_excessive_partition_counts_are_refused(broker: Broker) -> None:
    make_topic(broker, "growing")
    with under_attack(broker, 20), Peer(broker) as peer:
        for count in (10_002, 1_000_000_000, 0x7FFFFFFF):
            topic = CreatableTopic(
                name="huge", num_partitions=count, replication_factor=1, assignments=[], configs=[]
            )
            made = peer.ask(
                ApiKey.CREATE_TOPICS,
                7,
                CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False),
            )
            assert made.topics[0].error_code == ErrorCode.POLICY_VIOLATION
            growth = CreatePartitionsTopic(name="growing", count=count, assignments=None)
            grown = peer.ask(
                ApiKey.CREATE_PARTITIONS,
                3,
                CreatePartitionsRequest(topics=[growth], timeout_ms=1000, validate_only=False),
            )
            assert grown.results[0].error_code == ErrorCode.POLICY_VIOLATION


def test_other_requests_are_served_while_many_partitions_are_created(broker: Broker) -> None:
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker) as peer:
        topic = CreatableTopic(
            name="wide", num_partitions=1000, replication_factor=1, assignments=[], configs=[]
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=False)
        assert peer.ask(ApiKey.CREATE_TOPICS, 7, request).topics[0].error_code == 0


def test_more_topics_than_the_partition_limit_are_refused_at_once(broker: Broker) -> None:
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker) as peer:
        topics = [
            CreatableTopic(
                name=f"n{number}", num_partitions=1, replication_factor=1, assignments=[], configs=[]
            )
            for number in range(20_000)
        ]
        request = CreateTopicsRequest(topics=topics, timeout_ms=30_000, validate_only=False)
        answer = peer.ask(ApiKey.CREATE_TOPICS, 7, request)
        assert {topic.error_code for topic in answer.topics} == {ErrorCode.POLICY_VIOLATION}


def test_automatic_topic_creations_of_a_request_are_limited(broker: Broker) -> None:
    names = [f"automatic-{number}" for number in range(5000)]
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker) as peer:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=True
        )
        answer = peer.ask(ApiKey.METADATA, 12, request)
        assert [topic.name for topic in answer.topics] == names
        codes = [topic.error_code for topic in answer.topics]
        assert 0 < codes.count(0) <= 200
        assert set(codes) == {0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_repeated_resources_are_described_once(broker: Broker) -> None:
    make_topic(broker, "described")
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker) as peer:
        resource = DescribeConfigsResource(
            resource_type=2, resource_name="described", configuration_keys=None
        )
        asked = DescribeConfigsRequest(
            resources=[resource] * 30_000, include_synonyms=True, include_documentation=True
        )
        assert len(peer.ask(ApiKey.DESCRIBE_CONFIGS, 4, asked).results) == 1
        producers = DescribeProducersRequest(
            topics=[TopicRequest(name="described", partition_indexes=[0] * 50_000)]
        )
        assert len(peer.ask(ApiKey.DESCRIBE_PRODUCERS, 0, producers).topics[0].partitions) == 1
        groups = DescribeGroupsRequest(groups=["group"] * 50_000)
        assert len(peer.ask(ApiKey.DESCRIBE_GROUPS, 5, groups).groups) == 1
        offsets = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="group", topics=None)] * 30_000)
        assert len(peer.ask(ApiKey.OFFSET_FETCH, 8, offsets).groups) == 1
        times = ListOffsetsTopic(
            name="described", partitions=[ListOffsetsPartition(partition_index=0, timestamp=5)] * 50_000
        )
        answer = peer.ask(ApiKey.LIST_OFFSETS, 6, ListOffsetsRequest(replica_id=-1, topics=[times]))
        codes = [part.error_code for part in answer.topics[0].partitions]
        assert codes == [0] + [ErrorCode.INVALID_REQUEST] * 49_999


def test_keys_of_a_repeated_resource_are_all_described(broker: Broker) -> None:
    make_topic(broker, "twice")

    def resource(*keys: str) -> DescribeConfigsResource:
        return DescribeConfigsResource(
            resource_type=2, resource_name="twice", configuration_keys=list(keys) or None
        )

    with Peer(broker) as peer:
        for resources, count in (
            ([resource("segment.bytes"), resource("segment.ms")], 2),
            ([resource("segment.bytes"), resource("segment.bytes")], 1),
            ([resource("segment.bytes"), resource()], 20),
            ([resource(), resource("segment.bytes")], 20),
        ):
            (result,) = peer.ask(
                ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=resources)
            ).results
            assert (len(result.configs) == count) if count < 20 else (len(result.configs) > count)


def test_settings_of_100000_resources_do_not_delay_others(broker: Broker) -> None:
    # 25 MB, but 100 MB if each error stays until the cycle collector runs.
    with under_attack(broker, 60), Peer(broker, 60) as peer:
        resources = [
            AlterConfigsResource(resource_type=2, resource_name=f"none{number}", configs=[])
            for number in range(50_000)
        ]
        request = IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
        answer = peer.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
        assert {one.error_code for one in answer.responses} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        groups = [
            DescribeConfigsResource(resource_type=32, resource_name=f"g{number}", configuration_keys=None)
            for number in range(12_000)
        ]
        described = peer.ask(ApiKey.DESCRIBE_CONFIGS, 4, DescribeConfigsRequest(resources=groups)).results
        codes = [one.error_code for one in described]
        assert codes == [0] * 10_000 + [ErrorCode.INVALID_REQUEST] * 2_000


@pytest.mark.parametrize(("count", "code"), [(1_000, 0), (1_001, 42), (90_000, 42)])
def test_logger_levels_in_a_request_are_limited(broker: Broker, count: int, code: int) -> None:
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker) as peer:
        level = AlterableConfig(name="root", config_operation=0, value="INFO")
        resource = AlterConfigsResource(resource_type=8, resource_name="1", configs=[level] * count)
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)
        began = time.monotonic()
        (answer,) = peer.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request).responses
        assert time.monotonic() - began < 3
        assert answer.error_code == code
        assert code == 0 or f"{count} settings of one resource are too many" in answer.error_message


@pytest.mark.parametrize("value", ["a," * 16_000, ",".join(str(number) for number in range(5500))])
def test_lists_of_thousands_of_entries_are_changed_in_time(broker: Broker, value: str) -> None:
    make_topic(broker, f"listed-{len(value)}")
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker) as peer:
        for operation in (2, 3):
            config = AlterableConfig(name="cleanup.policy", config_operation=operation, value=value)
            resource = AlterConfigsResource(
                resource_type=2, resource_name=f"listed-{len(value)}", configs=[config]
            )
            request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)
            peer.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)


def test_error_texts_of_names_of_maximum_length_fit(broker: Broker) -> None:
    digits = "7" * 32_000
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker) as peer:
        for name in (LONG, "\0" * 32_000, "\x07é" * 10_000):
            data = TopicProduceData(
                name=name, partition_data=[PartitionProduceData(index=0, records=b"x" * 70)]
            )
            produce = ProduceRequest(transactional_id=None, acks=1, timeout_ms=1, topic_data=[data])
            for version in (8, 9):
                part = peer.ask(ApiKey.PRODUCE, version, produce).responses[0].partition_responses[0]
                assert part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for key_type in (0, 1, 2):
                for version in (2, 4):
                    request = FindCoordinatorRequest(key_type=key_type)
                    if version == 4:
                        request.coordinator_keys = [name]
                    else:
                        request.key = name
                    peer.ask(ApiKey.FIND_COORDINATOR, version, request)
            for kind in (2, 4, 8, 16, 32, 99):
                for text in (name, digits):
                    resource = DescribeConfigsResource(
                        resource_type=kind, resource_name=text, configuration_keys=[text]
                    )
                    peer.ask(ApiKey.DESCRIBE_CONFIGS, 1, DescribeConfigsRequest(resources=[resource]))
                    config = AlterableConfig(name=name, config_operation=0, value=name)
                    change = AlterConfigsResource(resource_type=kind, resource_name=text, configs=[config])
                    asked = IncrementalAlterConfigsRequest(resources=[change], validate_only=False)
                    peer.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, asked)
            topic = CreatableTopic(
                name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]
            )
            made = CreateTopicsRequest(topics=[topic], timeout_ms=1000, validate_only=False)
            assert peer.ask(ApiKey.CREATE_TOPICS, 4, made).topics[0].error_code
            peer.ask(
                ApiKey.DESCRIBE_PRODUCERS,
                0,
                DescribeProducersRequest(topics=[TopicRequest(name=name, partition_indexes=[0])]),
            )
            peer.ask(ApiKey.DESCRIBE_GROUPS, 6, DescribeGroupsRequest(groups=[name]))
            growth = CreatePartitionsTopic(name=name, count=2, assignments=None)
            peer.ask(
                ApiKey.CREATE_PARTITIONS,
                1,
                CreatePartitionsRequest(topics=[growth], timeout_ms=100, validate_only=False),
            )


def test_a_client_with_a_long_name_joins_a_group(broker: Broker) -> None:
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker) as peer:
        deadline = time.monotonic() + 10
        for instance_id in (None, LONG):
            request = JoinGroupRequest(
                group_id=f"joined-{instance_id is None}",
                session_timeout_ms=6000,
                rebalance_timeout_ms=6000,
                member_id="",
                group_instance_id=instance_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
            )
            while True:
                peer.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key=request.group_id))
                peer.socket.sendall(encode_request(ApiKey.JOIN_GROUP, 5, 9, LONG, request))
                _, answer = decode_response(ApiKey.JOIN_GROUP, 5, peer.frame())
                if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                    request.member_id = answer.member_id
                elif answer.error_code == 0:
                    break
                assert time.monotonic() < deadline, answer
            assert len(answer.member_id) < 400


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_batches_that_unpack_to_gigabytes_are_refused(broker: Broker, codec: int) -> None:
    topic = f"bombed-{codec}"
    topic_id = make_topic(broker, topic)
    bomb = bomb_of(codec)
    with under_attack(broker, GROWTH_MB_MAX), Peer(broker, 60) as peer:
        for _ in range(3):
            peer.socket.sendall(produce_frame(13, topic, topic_id, bomb, 1, 1))
            (part,) = decode_response(0, 13, peer.frame())[1].responses[0].partition_responses
            assert part.error_code in REFUSED, part
        answer = peer.ask(ApiKey.FETCH, 17, fetch_request(topic_id, 0, 0))
        assert answer.responses[0].partitions[0].high_watermark == 0


def bomb_of(codec: int) -> bytes:
    """A batch of 1 MB at most with the largest decompressed size of its codec: 1 GB, with snappy 20 MB."""
    builder = BatchBuilder()
    builder.append(1_700_000_000_000, None, b"")
    head = builder.build()
    piece = compress(codec, bytes(4 << 20))
    data = piece * max(1, min(256, 900_000 // len(piece)))
    batch = bytearray(head[: layout.RECORDS] + data)
    batch[layout.ATTRIBUTES : layout.ATTRIBUTES + 2] = struct.pack(">h", codec)
    batch[layout.LENGTH : layout.LENGTH + 4] = struct.pack(">i", len(batch) - 12)
    batch[layout.CRC : layout.CRC + 4] = struct.pack(">I", crc32c(bytes(batch[layout.ATTRIBUTES :])))
    return bytes(batch)


def test_concurrent_decompression_bombs_are_handled_one_after_the_other(broker: Broker) -> None:
    topic_id = make_topic(broker, "bombed")
    frames = [produce_frame(13, "bombed", topic_id, bomb_of(codec), 1, 1) for codec in (1, 2, 3, 4)]
    with under_attack(broker, GROWTH_MB_MAX):
        peers = [Peer(broker, 60) for _ in range(40)]
        for number, peer in enumerate(peers):
            peer.socket.sendall(frames[number % 4])
        for peer in peers:
            peer.frame()
            peer.close()


def test_unread_large_responses_stay_within_the_memory_limit() -> None:
    resources = [
        DescribeConfigsResource(resource_type=32, resource_name=f"g{number}", configuration_keys=None)
        for number in range(1500)
    ]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True)
    frame = encode_request(ApiKey.DESCRIBE_CONFIGS, 4, 1, "greedy", request)
    with Broker({"queued.max.request.bytes": str(8 << 20)}) as small:
        with Peer(small) as peer:
            peer.socket.sendall(frame)
            reply_bytes = len(peer.frame())
        with contextlib.ExitStack() as stack:
            peers = [stack.enter_context(Peer(small)) for _ in range(40)]
            assert 40 * reply_bytes > 100 << 20
            with under_attack(small, 60):
                for peer in peers:
                    peer.socket.sendall(frame)
                time.sleep(4)
        check_log(small)


@pytest.mark.parametrize("distinct", [False, True])
def test_a_request_for_20000_offsets_does_not_delay_others(broker: Broker, distinct: bool) -> None:
    asked = [
        ListOffsetsPartition(
            partition_index=number if distinct else 0, timestamp=1_700_000_000_000, current_leader_epoch=-1
        )
        for number in range(20_000)
    ]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="honest", partitions=asked)])
    frame = encode_request(ApiKey.LIST_OFFSETS, 8, 1, "greedy", request)
    with under_attack(broker, GROWTH_MB_MAX) as client, Peer(broker, 60) as peer:
        before = client.rounds
        peer.socket.sendall(frame)
        answered = peer.frame()
        assert client.rounds > before
    answer: Any = decode_response(ApiKey.LIST_OFFSETS, 8, answered)[1]
    codes = [one.error_code for one in answer.topics[0].partitions]
    assert len(codes) == 20_000
    assert set(codes[1:]) <= {ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
