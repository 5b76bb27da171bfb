"""Requests between brokers are refused on client listeners; invalid ones have no effect."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from broker_cluster import Brokers, start_cluster, until, zookeeper_client
from kazoo.client import KazooClient
from wire_values import message_of

from tidemill.coordination.nodes import BrokerNode
from tidemill.model.errors import ErrorCode
from tidemill.testing import Broker
from tidemill.testing.zookeeper import ZooKeeper
from tidemill.wire.apis import ApiKey, request_class
from tidemill.wire.header import decode_response, encode_request
from tidemill.wire.messages.alter_partition import AlterPartitionRequest
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.messages.controlled_shutdown import ControlledShutdownRequest
from tidemill.wire.messages.envelope import EnvelopeRequest
from tidemill.wire.messages.leader_and_isr import LeaderAndIsrRequest
from tidemill.wire.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from tidemill.wire.messages.update_metadata import UpdateMetadataRequest
from tidemill.wire.schema import Struct, parse_versions

TIMEOUT_S = 20.0
GROWTH_BYTES_MAX = 48_000_000
TRIED = 200
STOP = StopReplicaRequest(
    controller_id=1,
    controller_epoch=1,
    topic_states=[
        StopReplicaTopicState(
            topic_name="t",
            partition_states=[
                StopReplicaPartitionState(partition_index=0, leader_epoch=-2, delete_partition=True)
            ],
        )
    ],
)
COMMANDS: dict[ApiKey, tuple[int, Struct]] = {
    ApiKey.LEADER_AND_ISR: (
        7,
        LeaderAndIsrRequest(controller_id=1, controller_epoch=9, topic_states=[], live_leaders=[]),
    ),
    ApiKey.STOP_REPLICA: (4, STOP),
    ApiKey.UPDATE_METADATA: (
        8,
        UpdateMetadataRequest(controller_id=1, controller_epoch=9, type=1, topic_states=[], live_brokers=[]),
    ),
    ApiKey.ALTER_PARTITION: (3, AlterPartitionRequest(broker_id=1, broker_epoch=-1, topics=[])),
    ApiKey.ENVELOPE: (
        0,
        EnvelopeRequest(request_data=b"", request_principal=b"User:admin", client_host_address=b"\1\1\1\1"),
    ),
    ApiKey.CONTROLLED_SHUTDOWN: (3, ControlledShutdownRequest(broker_id=1, broker_epoch=-1)),
}


SETTINGS = {
    "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
    "min.insync.replicas": "1",
}


@pytest.fixture(scope="module")
def cluster(zookeeper_server: ZooKeeper) -> Iterator[Brokers]:
    """One broker with a listener for clients, the first, and one for brokers."""
    with start_cluster(f"{zookeeper_server.address}/test-inter-broker", 1, **SETTINGS) as found:
        with found.admin() as admin:
            admin.create_topic("t", 1, 1)
        yield found


def ports(cluster: Brokers) -> dict[str, int]:
    address, _, path = cluster.address.partition("/")
    client = KazooClient(address)
    client.start()
    try:
        data, _ = client.get(f"/{path}/brokers/ids/1")
    finally:
        client.stop()
        client.close()
    return {one.listener: one.port for one in BrokerNode.decode(1, data).endpoints}


def asked(port: int, key: int, version: int, message: Struct) -> Any:
    """The answer; None where the broker ends the connection instead."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as one:
        one.settimeout(TIMEOUT_S)
        one.sendall(encode_request(key, version, 7, "stranger", message))
        head = received(one, 4)
        if len(head) < 4:
            return None
        frame = received(one, struct.unpack(">i", head)[0])
    return decode_response(key, version, frame)[1]


def received(one: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (piece := one.recv(count - len(data))):
        data += piece
    return data


def resident_bytes(cluster: Brokers) -> int:
    return int(Path(f"/proc/{cluster.brokers[1].pid}/statm").read_text().split()[1]) * 4096


def serves(cluster: Brokers, name: str) -> None:
    with cluster.admin() as admin:
        admin.create_topic(name, 1, 1)
        assert {"t", name} <= {topic.name for topic in admin.list_topics()}
    assert (Path(cluster.brokers[1].data_dir) / "t-0").is_dir()


def test_controller_requests_are_refused_on_client_listeners(cluster: Brokers) -> None:
    port = ports(cluster)["CLIENTS"]
    assert port == cluster.brokers[1].port
    for key, (version, message) in COMMANDS.items():
        answer = asked(port, key, version, message)
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, key
    serves(cluster, "after-refusals")


def test_controller_requests_with_invalid_epochs_change_nothing(cluster: Brokers) -> None:
    port = ports(cluster)["BROKERS"]
    for key in (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA):
        answer = asked(port, key, *COMMANDS[key])
        assert answer.error_code == ErrorCode.NOT_CONTROLLER  # There has been no such epoch.
    for epoch in (0, 2**62):
        stop: Any = StopReplicaRequest(
            controller_id=1, controller_epoch=1, broker_epoch=epoch, topic_states=STOP.topic_states
        )
        assert asked(port, ApiKey.STOP_REPLICA, 4, stop).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert asked(port, *_of(ApiKey.ENVELOPE)).error_code == ErrorCode.INVALID_REQUEST
    serves(cluster, "after-invalid-epochs")


def _of(key: ApiKey) -> tuple[int, int, Struct]:
    return key, *COMMANDS[key]


def test_invalid_controller_requests_close_at_most_their_connection(cluster: Brokers) -> None:
    port = ports(cluster)["BROKERS"]
    random = Random(11)
    before = resident_bytes(cluster)
    for _ in range(TRIED):
        key = random.choice(list(COMMANDS))
        first, last = parse_versions(request_class(key).versions_)
        version = random.randrange(first, last + 1)
        message: Any = message_of(random, request_class(key), version, items_max=3)
        if hasattr(message, "controller_epoch"):
            message.controller_epoch = random.choice((-1, 0, 2**31 - 1))
        if key == ApiKey.CONTROLLED_SHUTDOWN:
            message.broker_id = 77
        asked(port, key, version, message)
    # Lengths that lie: nothing is set aside for what does not come.
    for key, (version, message) in COMMANDS.items():
        frame = encode_request(key, version, 7, "stranger", message)
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as one:
            one.sendall(frame[:4] + frame[4:24] + b"\xff\xff\xff\xff\x07" * 8 + frame[64:])
            one.sendall(struct.pack(">i", 90_000_000) + frame[4:])
    until(lambda: resident_bytes(cluster) - before < GROWTH_BYTES_MAX, "it holds no more than before")
    assert "Traceback" not in cluster.brokers[1].log
    serves(cluster, "after-nonsense")


@contextlib.contextmanager
def all_connections_taken(broker: Broker) -> Iterator[None]:
    """A client that connects until it is refused."""
    with contextlib.ExitStack() as stack:
        while True:
            one = stack.enter_context(socket.create_connection((broker.host, broker.port), TIMEOUT_S))
            one.settimeout(TIMEOUT_S)
            try:
                one.sendall(encode_request(ApiKey.API_VERSIONS, 0, 1, None, ApiVersionsRequest()))
                if not received(one, 4):
                    break
            except ConnectionError:
                break
        yield


def test_a_broker_rejoins_the_isr_while_clients_hold_all_connections_of_its_leader(
    zookeeper_server: ZooKeeper,
) -> None:
    address = f"{zookeeper_server.address}/test-connections-{time.monotonic_ns()}"
    with (
        start_cluster(address, 2, **SETTINGS, max__connections="30") as cluster,
        zookeeper_client(address) as store,
    ):

        def isr() -> list[int]:
            data, _ = store.get("/brokers/topics/t/partitions/0/state")
            found: list[int] = json.loads(data)["isr"]
            return sorted(found)

        with cluster.admin() as admin:
            admin.create_topic("t", 1, 2)
        until(lambda: isr() == [1, 2], "both are in sync")
        leader = cluster.leaders("t")[0]
        other = cluster.brokers[3 - leader]
        other.stop()
        until(lambda: isr() == [leader], "one is left")
        with all_connections_taken(cluster.brokers[leader]):
            other.start()
            until(lambda: isr() == [1, 2], "the other is back in sync")
        assert "max.connections=30 are open, and a broker connected" in cluster.brokers[leader].log
