"""The data of Kafka's nodes, as written by Kafka 3.9 and by older versions."""

from __future__ import annotations

import json

import pytest

from tidemill.coordination.encoding import NodeFormatError, write_json
from tidemill.coordination.lost_replicas import LOST_BYTES_MAX, LostReplicas, encode_lost
from tidemill.coordination.nodes import (
    DEFAULT_ENTITY,
    BrokerNode,
    BrokerRegistration,
    ClusterIdNode,
    ConfigChangeNode,
    ConfigNode,
    ControllerEpochNode,
    ControllerNode,
    DeleteTopicNode,
    Endpoint,
    FeatureNode,
    LeaderIsrAndControllerEpoch,
    LogDirEventNode,
    PartitionListNode,
    PartitionStateNode,
    ProducerIdBlock,
    ProducerIdBlockNode,
    ReassignmentNode,
    TopicAssignment,
    TopicNode,
)
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE
from tidemill.model.types import TopicPartition

TOPIC_ID = bytes.fromhex("8d6b13f5c2e14f0bb9fd2f2f8d31a3e4")


def same_json(data: bytes, text: str) -> bool:
    """Whether both are the same JSON value, regardless of the order of keys."""
    return bool(json.loads(data) == json.loads(text)) and b" " not in data


def test_encodes_a_topic_like_kafka() -> None:
    data = TopicNode.encode(TopicAssignment(TOPIC_ID, {0: [1, 2], 1: [2, 1]}))
    assert same_json(
        data,
        '{"removing_replicas":{},"partitions":{"0":[1,2],"1":[2,1]},"topic_id":"jWsT9cLhTwu5_S8vjTGj5A",'
        '"adding_replicas":{},"version":3}',
    )
    assert TopicNode.path("t") == "/brokers/topics/t"


@pytest.mark.parametrize("count", [0, 1, ITEMS_PER_SLICE, 3 * ITEMS_PER_SLICE + 1])
def test_encoding_a_large_topic_in_parts_yields_the_same_bytes(count: int) -> None:
    replicas = {number: [number % 3, 7] for number in range(count)}
    assignment = TopicAssignment(TOPIC_ID, replicas, {0: [7]}, {1: [3, 2]})
    assert len(list(TopicNode.encode_in_slices(assignment))) == count // ITEMS_PER_SLICE
    assert TopicNode.encode(assignment) == write_json(
        {
            "removing_replicas": {"1": [3, 2]},
            "partitions": {str(number): one for number, one in replicas.items()},
            "adding_replicas": {"0": [7]},
            "version": 3,
            "topic_id": "jWsT9cLhTwu5_S8vjTGj5A",
        }
    )


def test_decodes_topics_of_all_versions() -> None:
    first = TopicNode.decode("t", b'{"version":1,"partitions":{"0":[1],"10":[2]}}')
    assert first == TopicAssignment(None, {0: [1], 10: [2]})
    third = TopicNode.decode(
        "t",
        b'{"version":3,"topic_id":"jWsT9cLhTwu5_S8vjTGj5A","partitions":{"0":[1,2,3]},'
        b'"adding_replicas":{"0":[3]},"removing_replicas":{"0":[1]},"later":true}',
    )
    assert third == TopicAssignment(TOPIC_ID, {0: [1, 2, 3]}, {0: [3]}, {0: [1]})


def test_encodes_a_partition_state_like_kafka() -> None:
    state = LeaderIsrAndControllerEpoch(leader=1, leader_epoch=7, isr=[1, 2], controller_epoch=3)
    data = PartitionStateNode.encode(state)
    assert same_json(data, '{"controller_epoch":3,"leader":1,"version":1,"leader_epoch":7,"isr":[1,2]}')
    assert PartitionStateNode.decode("t", 0, data) == state
    assert PartitionStateNode.path("t", 4) == "/brokers/topics/t/partitions/4/state"


def test_a_partition_without_a_leader_contains_its_eligible_leaders() -> None:
    state = LeaderIsrAndControllerEpoch(-1, 8, [], 3, elr=(2, 1), last_known_leader=3, lost_replicas=(3,))
    data = PartitionStateNode.encode(state)
    assert same_json(
        data,
        '{"controller_epoch":3,"leader":-1,"version":1,"leader_epoch":8,"isr":[2,1],'
        '"elr":[2,1],"last_known_leader":3,"lost_replicas":[3]}',
    )
    assert PartitionStateNode.decode("t", 0, data) == state
    beside = LeaderIsrAndControllerEpoch(1, 7, [1], 3, elr=(2,))
    data = PartitionStateNode.encode(beside)
    assert (json.loads(data)["isr"], PartitionStateNode.decode("t", 0, data)) == ([1], beside)
    nobody = LeaderIsrAndControllerEpoch(-1, 8, [], 3, lost_replicas=(1,))
    data = PartitionStateNode.encode(nobody)
    assert (json.loads(data)["isr"], PartitionStateNode.decode("t", 0, data)) == ([], nobody)


@pytest.mark.parametrize(
    "field", ['"elr":[1,1]', '"elr":1', '"lost_replicas":["a"]', '"last_known_leader":[]']
)
def test_rejects_invalid_eligible_leaders(field: str) -> None:
    known = '"controller_epoch":3,"leader":1,"version":1,"leader_epoch":7,"isr":[1,2]'
    with pytest.raises(NodeFormatError):
        PartitionStateNode.decode("t", 0, f"{{{known},{field}}}".encode())


def test_a_broker_registration_contains_its_lost_replicas() -> None:
    endpoints = (Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092),)
    lost = LostReplicas(unsynced=True, missing={"t": frozenset({0, 3})}, first_epoch=2**40)
    data = BrokerNode.encode(BrokerRegistration(1, endpoints, lost=lost))
    value = json.loads(data)
    assert (value["lost_unsynced"], value["lost_logs"]) == (True, {"t": [0, 3]})
    found = BrokerNode.decode(1, data).lost
    assert found == lost
    assert (found.is_missing("t", 3), found.is_missing("t", 1), found.is_missing("u", 0)) == (
        True,
        False,
        False,
    )
    assert found.is_lost("u", 5)
    # Apache Kafka and a broker without lost replicas write neither field.
    assert "lost_logs" not in json.loads(BrokerNode.encode(BrokerRegistration(1, endpoints)))


def test_reports_all_replicas_if_the_lost_ones_do_not_fit_in_a_node() -> None:
    few = {"t" * 200: frozenset(range(1000))}
    many = {f"{number:0200}": frozenset(range(10)) for number in range(1000)}
    assert encode_lost(few) == {"t" * 200: list(range(1000))}
    assert sum(map(len, many)) < LOST_BYTES_MAX < sum(len(topic) + 78 for topic in many)
    assert encode_lost(many) is True


def test_encodes_a_broker_like_kafka() -> None:
    registration = BrokerRegistration(
        1,
        (Endpoint("CLIENT", "SSL", "host1", 9092), Endpoint("INTERNAL", "PLAINTEXT", "fe80::1", 9093)),
        "dc1",
        2233345666,
        {"feature": {"min_version": 1, "max_version": 3}},
    )
    data = BrokerNode.encode(registration)
    assert same_json(
        data,
        '{"features":{"feature":{"min_version":1,"max_version":3}},'
        '"listener_security_protocol_map":{"CLIENT":"SSL","INTERNAL":"PLAINTEXT"},"endpoints":'
        '["CLIENT://host1:9092","INTERNAL://[fe80::1]:9093"],"jmx_port":-1,"port":9093,"host":"fe80::1",'
        '"version":5,"timestamp":"2233345666","rack":"dc1"}',
    )
    assert BrokerNode.decode(1, data) == registration


def test_a_broker_without_a_plaintext_listener_has_no_host_and_port() -> None:
    data = BrokerNode.encode(BrokerRegistration(1, (Endpoint("SSL", "SSL", "h", 9092),)))
    value = json.loads(data)
    assert (value["host"], value["port"], "rack" in value) == (None, -1, False)


@pytest.mark.parametrize(
    ("data", "endpoints"),
    [
        (
            b'{"version":1,"host":"localhost","port":9092,"jmx_port":9999,"timestamp":"2233345666"}',
            (Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092),),
        ),
        (
            b'{"version":2,"host":"localhost","port":9092,"jmx_port":9999,"timestamp":"2233345666",'
            b'"endpoints":["PLAINTEXT://host1:9092","SSL://host1:9093"]}',
            (Endpoint("PLAINTEXT", "PLAINTEXT", "host1", 9092), Endpoint("SSL", "SSL", "host1", 9093)),
        ),
        (
            b'{"version":4,"host":"localhost","port":9092,"jmx_port":9999,"timestamp":"2233345666",'
            b'"endpoints":["CLIENT://host1:9092"],"listener_security_protocol_map":{"CLIENT":"SSL"},"rack":"dc1"}',
            (Endpoint("CLIENT", "SSL", "host1", 9092),),
        ),
    ],
)
def test_decodes_brokers_of_older_versions(data: bytes, endpoints: tuple[Endpoint, ...]) -> None:
    decoded = BrokerNode.decode(3, data)
    assert (decoded.broker_id, decoded.endpoints, decoded.timestamp_ms) == (3, endpoints, 2233345666)


def test_encodes_small_nodes_like_kafka() -> None:
    assert same_json(
        ControllerNode.encode(1, 1700000000000),
        '{"version":2,"brokerid":1,"timestamp":"1700000000000","kraftControllerEpoch":-1}',
    )
    assert ControllerNode.decode(b'{"version":1,"brokerid":5,"timestamp":"1"}') == 5
    assert ControllerEpochNode.encode(12) == b"12"
    assert ControllerEpochNode.decode(b"12") == 12
    assert same_json(ClusterIdNode.encode("abc"), '{"version":"1","id":"abc"}')
    assert ClusterIdNode.decode(b'{"version":"1","id":"abc"}') == "abc"
    assert same_json(ConfigNode.encode({"a": "1"}), '{"version":1,"config":{"a":"1"}}')
    assert ConfigNode.decode("/config/topics/t", b'{"version":1,"config":{"a":"1"}}') == {"a": "1"}
    assert ConfigNode.decode("/config/topics/t", b"") == {}
    assert same_json(ConfigChangeNode.encode("topics", "t"), '{"version":2,"entity_path":"topics/t"}')
    assert ConfigChangeNode.decode(b'{"version":1,"entity_type":"topics","entity_name":"t"}') == "topics/t"
    block = ProducerIdBlock(1, 1000, 1999)
    assert same_json(
        ProducerIdBlockNode.encode(block), '{"version":1,"broker":1,"block_start":"1000","block_end":"1999"}'
    )
    assert ProducerIdBlockNode.decode(ProducerIdBlockNode.encode(block)) == block
    listed = [TopicPartition("t", 0)]
    assert same_json(
        PartitionListNode.encode(listed), '{"version":1,"partitions":[{"topic":"t","partition":0}]}'
    )
    assert PartitionListNode.decode("/p", PartitionListNode.encode(listed)) == listed
    wishes = {TopicPartition("t", 0): [1, 2]}
    assert same_json(
        ReassignmentNode.encode(wishes),
        '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[1,2]}]}',
    )
    assert ReassignmentNode.decode(ReassignmentNode.encode(wishes)) == wishes
    assert same_json(LogDirEventNode.encode(2), '{"version":1,"broker":2,"event":1}')
    assert LogDirEventNode.decode(LogDirEventNode.encode(2)) == 2
    assert DeleteTopicNode.path("t") == "/admin/delete_topics/t"


def test_a_feature_level_of_0_is_left_out_as_kafka_does_not_start_with_it() -> None:
    data = FeatureNode.encode({"group.version": 0, "transaction.version": 2})
    assert same_json(data, '{"version":2,"status":1,"features":{"transaction.version":2}}')
    assert same_json(FeatureNode.encode({"transaction.version": 0}), '{"version":2,"status":1,"features":{}}')
    first = b'{"version":1,"status":1,"features":{"a":{"min_version_level":1,"max_version_level":3}}}'
    assert FeatureNode.decode(first) == {"a": 3}


def test_config_nodes_of_users_are_percent_encoded() -> None:
    assert ConfigNode.path("users", "CN=a, OU=/b") == "/config/users/CN%3Da%2C%20OU%3D%2Fb"
    assert ConfigNode.name("users", "CN%3Da%2C%20OU%3D%2Fb") == "CN=a, OU=/b"
    assert ConfigNode.path("brokers", DEFAULT_ENTITY) == "/config/brokers/<default>"
    assert ConfigNode.path("topics", "a.b_c-d") == "/config/topics/a.b_c-d"


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (lambda data: TopicNode.decode("t", data), b"{"),
        (lambda data: TopicNode.decode("t", data), b"[]"),
        (lambda data: TopicNode.decode("t", data), b'{"version":3}'),
        (lambda data: TopicNode.decode("t", data), b'{"partitions":{"x":[1]}}'),
        (lambda data: TopicNode.decode("t", data), b'{"partitions":{"0":[1]},"topic_id":"short"}'),
        (lambda data: PartitionStateNode.decode("t", 0, data), b'{"leader":1}'),
        (lambda data: BrokerNode.decode(1, data), b'{"version":5,"endpoints":["PLAINTEXT://h"]}'),
        (ControllerNode.decode, b"{}"),
        (ControllerEpochNode.decode, b"x"),
        (ClusterIdNode.decode, b'{"id":""}'),
        (ProducerIdBlockNode.decode, b'{"broker":1}'),
        (lambda data: ConfigNode.decode("/config/topics/t", data), b'{"config":[]}'),
    ],
)
def test_reports_invalid_data_with_the_path_of_its_node(decode, data: bytes) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(NodeFormatError, match=r"^/.*cannot be read"):
        decode(data)
