"""Kafka's nodes in the coordination store: where each kind is, and how its data is written.

====================================== ===== ======================================================= =========
path                                   life  data                                                    version
====================================== ===== ======================================================= =========
/cluster/id                            stays {"version":"1","id":"..."}                               "1"
/brokers/ids/N                         owner endpoints, host, port, rack, features, timestamp         5
/brokers/seqid                         stays none: its node version counts generated broker ids       -
/brokers/topics/T                      stays {"partitions":{"0":[1,2]},"topic_id":"..."}              3
/brokers/topics/T/partitions/P/state   stays leader, leader_epoch, isr, controller_epoch              1
/controller                            owner brokerid, timestamp                                      2
/controller_epoch                      stays a decimal number                                         -
/config/topics|brokers|.../NAME        stays {"version":1,"config":{"key":"value"}}                   1
/config/changes/config_change_N        stays {"version":2,"entity_path":"topics/T"}                   2
/admin/delete_topics/T                 stays none                                                     -
/admin/reassign_partitions             stays {"partitions":[{"topic","partition","replicas"}]}        1
/admin/preferred_replica_election      stays {"partitions":[{"topic","partition"}]}                   1
/isr_change_notification/isr_change_N  stays {"partitions":[{"topic","partition"}]}                   1
/log_dir_event_notification/..._N      stays {"broker":1,"event":1}                                   1
/latest_producer_id_block              stays broker, block_start and block_end as strings             1
/consumers/G/offsets/T/P               stays a decimal number                                         -
====================================== ===== ======================================================= =========

All JSON is UTF-8. Source: what Kafka 3.9 writes to ZooKeeper (``kafka.zk.ZkData``). Unknown fields are
ignored when read, older versions are understood, so that a cluster of either can be looked at by the other.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from tidemill.coordination.encoding import (
    NodeFormatError,
    check_version,
    decode_id,
    encode_id,
    number,
    numbers,
    read_any_json,
    read_json,
    write_json,
    writing_json,
)
from tidemill.coordination.lost_replicas import NOTHING_LOST, LostReplicas, decode_lost, lost_fields
from tidemill.model.slices import in_one_go
from tidemill.model.types import TopicPartition

CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKER_IDS = "/brokers/ids"
BROKER_SEQUENCE = "/brokers/seqid"
TOPICS = "/brokers/topics"
CONFIG_CHANGES = "/config/changes"
CLUSTER_ID = "/cluster/id"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
ISR_CHANGES = "/isr_change_notification"
LOG_DIR_EVENTS = "/log_dir_event_notification"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
CONSUMERS = "/consumers"

CONFIG_KINDS = ("topics", "brokers", "clients", "users", "ips", "groups")
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""By their numbers in the protocol."""
PORT_MAX = 65_535
DEFAULT_ENTITY = "<default>"
"""The entity of /config whose values hold for all that have none of their own."""

PERSISTENT_PATHS = (
    CONSUMERS,
    BROKER_IDS,
    BROKER_SEQUENCE,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    ISR_CHANGES,
    LOG_DIR_EVENTS,
    PRODUCER_ID_BLOCK,
    *(f"/config/{kind}" for kind in CONFIG_KINDS),
)
"""What every broker makes sure is there when it starts."""


class ClusterIdNode:
    """/cluster/id: 22 characters, made by the first broker."""

    path = CLUSTER_ID

    @staticmethod
    def encode(cluster_id: str) -> bytes:
        """The data for this id."""
        return write_json({"version": "1", "id": cluster_id})

    @staticmethod
    def decode(data: bytes) -> str:
        """The id."""
        value = read_json(CLUSTER_ID, data).get("id")
        if not isinstance(value, str) or not value:
            raise NodeFormatError(CLUSTER_ID, data, "it has no id")
        return value


class ControllerNode:
    """/controller: which broker is the controller, as long as it lives."""

    path = CONTROLLER

    @staticmethod
    def encode(broker_id: int, timestamp_ms: int) -> bytes:
        """The data of the broker that takes the office at ``timestamp_ms``."""
        return write_json(
            {"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms), "kraftControllerEpoch": -1}
        )

    @staticmethod
    def decode(data: bytes) -> int:
        """The id of the controller."""
        return _integer(CONTROLLER, data, read_json(CONTROLLER, data), "brokerid")


class ControllerEpochNode:
    """/controller_epoch: counts the controllers. Its node version fences their writes."""

    path = CONTROLLER_EPOCH

    @staticmethod
    def encode(epoch: int) -> bytes:
        """The data for this epoch."""
        return str(epoch).encode()

    @staticmethod
    def decode(data: bytes) -> int:
        """The epoch."""
        try:
            return int(data)
        except ValueError as error:
            raise NodeFormatError(CONTROLLER_EPOCH, data, error) from None


class Endpoint(NamedTuple):
    """Where a broker can be reached: listener name, security protocol, advertised host and port."""

    listener: str
    security_protocol: str
    host: str
    port: int


class BrokerRegistration(NamedTuple):
    """What a broker says of itself."""

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    timestamp_ms: int = -1
    features: Mapping[str, Mapping[str, int]] = {}
    lost: LostReplicas = NOTHING_LOST
    """Three fields of our own, ``lost_unsynced``, ``lost_logs`` and ``lost_first_epoch``. The node holds them
    until the controller has removed these replicas from in-sync sets and eligible leaders."""


class BrokerNode:
    """/brokers/ids/N: the broker lives; its creation id is the broker's epoch."""

    @staticmethod
    def path(broker_id: int) -> str:
        """Where broker ``broker_id`` registers."""
        return f"{BROKER_IDS}/{broker_id}"

    @staticmethod
    def encode(registration: BrokerRegistration) -> bytes:
        """Version 5. Host and port on top are the plaintext endpoint's, for the oldest clients."""
        plain = next((e for e in registration.endpoints if e.security_protocol == "PLAINTEXT"), None)
        value: dict[str, Any] = {
            "features": {name: dict(levels) for name, levels in registration.features.items()},
            "listener_security_protocol_map": {
                endpoint.listener: endpoint.security_protocol for endpoint in registration.endpoints
            },
            "endpoints": [
                f"{endpoint.listener}://{_bracketed(endpoint.host)}:{endpoint.port}"
                for endpoint in registration.endpoints
            ],
            "jmx_port": -1,
            "port": plain.port if plain else -1,
            "host": plain.host if plain else None,
            "version": 5,
            "timestamp": str(registration.timestamp_ms),
        }
        if registration.rack is not None:
            value["rack"] = registration.rack
        value |= lost_fields(registration.lost)
        return write_json(value)

    @staticmethod
    def decode(broker_id: int, data: bytes) -> BrokerRegistration:
        """Versions 1 (host and port only), 2 and 3 (listeners named by protocol), 4 and 5."""
        path = BrokerNode.path(broker_id)
        value = read_json(path, data)
        try:
            protocols = value.get("listener_security_protocol_map") or {}
            if check_version({"version": value["version"]}, 5) < 2:
                addresses = [f"PLAINTEXT://{value['host']}:{value['port']}"]
            else:
                addresses = value["endpoints"]
            rack, features = value.get("rack"), value.get("features") or {}
            if not isinstance(rack, str | None) or not isinstance(features, dict):
                raise TypeError("its rack is no text, or its features are no object")
            return BrokerRegistration(
                broker_id,
                tuple(_endpoint(text, protocols) for text in addresses),
                rack,
                int(value.get("timestamp", -1)),
                features,
                decode_lost(value),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NodeFormatError(path, data, repr(error)) from None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _endpoint(text: str, protocols: Mapping[str, str]) -> Endpoint:
    listener, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    protocol = protocols.get(listener, listener)
    if protocol not in SECURITY_PROTOCOLS:
        raise ValueError(f"security protocol {protocol!r} is not known")
    return Endpoint(listener, protocol, host.strip("[]"), number(port, 0, PORT_MAX))


class TopicAssignment(NamedTuple):
    """Which brokers hold a topic's partitions; the first of each list is the preferred leader."""

    topic_id: bytes | None
    replicas: dict[int, list[int]]
    adding: Mapping[int, list[int]] = {}
    removing: Mapping[int, list[int]] = {}


class TopicNode:
    """/brokers/topics/T: the topic's id, and the replicas of each partition."""

    @staticmethod
    def path(topic: str) -> str:
        """The node of ``topic``."""
        return f"{TOPICS}/{topic}"

    @staticmethod
    def encode(assignment: TopicAssignment) -> bytes:
        """Version 3."""
        return in_one_go(TopicNode.encoding(assignment))

    @staticmethod
    def encoding(assignment: TopicAssignment) -> Generator[None, None, bytes]:
        """As :meth:`encode`, with a pause after some partitions each."""
        value: dict[str, Any] = {"removing_replicas": assignment.removing, "partitions": assignment.replicas}
        value |= {"adding_replicas": assignment.adding, "version": 3}
        if assignment.topic_id is not None:
            value["topic_id"] = encode_id(assignment.topic_id)
        return (yield from writing_json(value))

    @staticmethod
    def decode(topic: str, data: bytes) -> TopicAssignment:
        """Versions 1 (replicas only), 2 (reassignment), 3 (topic id)."""
        value = read_json(TopicNode.path(topic), data)
        try:
            check_version(value, 3)
            topic_id = value.get("topic_id")
            replicas = _replica_lists(value["partitions"])
            if not all(replicas.values()):
                raise ValueError("a partition has no replica")
            return TopicAssignment(
                decode_id(topic_id) if topic_id is not None else None,
                replicas,
                _replica_lists(value.get("adding_replicas") or {}),
                _replica_lists(value.get("removing_replicas") or {}),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise NodeFormatError(TopicNode.path(topic), data, repr(error)) from None


def _replica_lists(value: Mapping[str, Sequence[int]]) -> dict[int, list[int]]:
    return {number(partition): numbers(replicas) for partition, replicas in value.items()}


class PartitionState(NamedTuple):
    """The leader of a partition (-1: none), its in-sync set, and who else may be elected (KIP-966)."""

    leader: int
    leader_epoch: int
    isr: list[int]
    controller_epoch: int
    elr: tuple[int, ...] = ()
    """Eligible leader replicas: outside of the in-sync set, and with every committed record all the same."""
    last_known_leader: int = -1
    """The leader before the partition had none; -1 while it has one, and when that leader's log is gone."""
    lost_replicas: tuple[int, ...] = ()
    """Replicas that have reported a loss since they were in sync last. A field of our own."""


class PartitionStateNode:
    """/brokers/topics/T/partitions/P/state. Its node version is the partition epoch."""

    @staticmethod
    def parents(topic: str) -> str:
        """The node above all partitions of ``topic``."""
        return f"{TOPICS}/{topic}/partitions"

    @staticmethod
    def parent(topic: str, partition: int) -> str:
        """The node above the state of one partition."""
        return f"{TOPICS}/{topic}/partitions/{partition}"

    @staticmethod
    def path(topic: str, partition: int) -> str:
        """The node of one partition's state."""
        return f"{TOPICS}/{topic}/partitions/{partition}/state"

    @staticmethod
    def encode(state: PartitionState) -> bytes:
        """Version 1. Fields that Apache Kafka does not know are left out where they say nothing.

        Kafka elects from ``isr`` alone: an empty one names the eligible leader replicas, for it to elect.
        """
        value: dict[str, Any] = {
            "controller_epoch": state.controller_epoch,
            "leader": state.leader,
            "version": 1,
            "leader_epoch": state.leader_epoch,
            "isr": state.isr or list(state.elr),
        }
        if state.elr:
            value["elr"] = list(state.elr)
        if state.last_known_leader >= 0:
            value["last_known_leader"] = state.last_known_leader
        if state.lost_replicas:
            value["lost_replicas"] = list(state.lost_replicas)
        return write_json(value)

    @staticmethod
    def decode(topic: str, partition: int, data: bytes) -> PartitionState:
        """The state. Who is eligible is not in sync. Kafka drops the fields that it does not know."""
        path = PartitionStateNode.path(topic, partition)
        value = read_json(path, data)
        try:
            check_version(value, 1)
            elr = tuple(numbers(value.get("elr", [])))
            return PartitionState(
                number(value["leader"], -1),
                number(value["leader_epoch"]),
                [broker for broker in numbers(value["isr"]) if broker not in elr],
                number(value["controller_epoch"]),
                elr,
                number(value.get("last_known_leader", -1), -1),
                tuple(numbers(value.get("lost_replicas", []))),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise NodeFormatError(path, data, repr(error)) from None


_NO_SETTINGS = write_json({"version": 1, "config": {}})
"""What most topics have: brokers are told of thousands at once."""


class ConfigNode:
    """/config/KIND/NAME: the values that were set for one topic, broker, client, user, address or group."""

    @staticmethod
    def path(kind: str, name: str) -> str:
        """Where the values are; other names are percent-encoded as Kafka does, and dots that stand alone."""
        if name == DEFAULT_ENTITY or kind in ("topics", "brokers"):
            return f"/config/{kind}/{name}"
        return f"/config/{kind}/{quote(name, safe='') if name.strip('.') else name.replace('.', '%2E')}"

    @staticmethod
    def name(kind: str, node_name: str) -> str:
        """The name of the entity whose node is called ``node_name``."""
        return node_name if kind in ("topics", "brokers") else unquote(node_name)

    @staticmethod
    def encode(config: Mapping[str, str]) -> bytes:
        """Version 1."""
        return write_json({"version": 1, "config": dict(config)})

    @staticmethod
    def decode(path: str, data: bytes) -> dict[str, str]:
        """The values by key; a node without data has none."""
        if not data or data == _NO_SETTINGS:
            return {}
        value = read_json(path, data)
        try:
            check_version(value, 1)
        except ValueError as error:
            raise NodeFormatError(path, data, error) from None
        config = value.get("config")
        if config is None:
            return {}
        if not isinstance(config, dict):
            raise NodeFormatError(path, data, "config is no object")
        for key, text in config.items():
            if not isinstance(text, str | int | float):
                raise NodeFormatError(path, data, f"{key} has no text")
        return {str(key): str(text) for key, text in config.items()}


class ConfigChangeNode:
    """/config/changes/config_change_N: tells all brokers to read a config node again."""

    prefix = f"{CONFIG_CHANGES}/config_change_"

    @staticmethod
    def encode(kind: str, name: str) -> bytes:
        """Version 2."""
        return write_json({"version": 2, "entity_path": ConfigNode.path(kind, name).removeprefix("/config/")})

    @staticmethod
    def decode(data: bytes) -> str:
        """The path below /config that changed."""
        value = read_any_json(CONFIG_CHANGES, data)
        if isinstance(value, str):
            return f"topics/{value}"  # Kafka 0.8.
        if not isinstance(value, dict):
            raise NodeFormatError(CONFIG_CHANGES, data, "it is no JSON object and no topic's name")
        if "entity_path" in value:
            return str(value["entity_path"])
        try:
            return f"{value['entity_type']}/{value['entity_name']}"  # Version 1.
        except KeyError as error:
            raise NodeFormatError(CONFIG_CHANGES, data, repr(error)) from None


class DeleteTopicNode:
    """/admin/delete_topics/T: this topic is to be deleted."""

    @staticmethod
    def path(topic: str) -> str:
        """The node that asks for the deletion of ``topic``."""
        return f"{DELETE_TOPICS}/{topic}"


class PartitionListNode:
    """The list of partitions whose preferred replicas an administrator wants to lead."""

    election_path = PREFERRED_REPLICA_ELECTION

    @staticmethod
    def encode(partitions: Sequence[TopicPartition]) -> bytes:
        """Version 1."""
        listed = [{"topic": topic, "partition": partition} for topic, partition in partitions]
        return write_json({"version": 1, "partitions": listed})

    @staticmethod
    def decode(path: str, data: bytes) -> list[TopicPartition]:
        """The partitions."""
        value = read_json(path, data)
        try:
            return [TopicPartition(str(p["topic"]), int(p["partition"])) for p in value["partitions"]]
        except (KeyError, TypeError, ValueError) as error:
            raise NodeFormatError(path, data, repr(error)) from None


class ReassignmentNode:
    """/admin/reassign_partitions: an administrator's wish for other replicas."""

    path = REASSIGN_PARTITIONS

    @staticmethod
    def encode(wishes: Mapping[TopicPartition, Sequence[int]]) -> bytes:
        """Version 1."""
        listed = [
            {"topic": topic, "partition": partition, "replicas": list(replicas)}
            for (topic, partition), replicas in wishes.items()
        ]
        return write_json({"version": 1, "partitions": listed})

    @staticmethod
    def decode(data: bytes) -> dict[TopicPartition, list[int]]:
        """The wished replicas by partition."""
        value = read_json(REASSIGN_PARTITIONS, data)
        try:
            return {
                TopicPartition(str(p["topic"]), int(p["partition"])): [int(b) for b in p["replicas"]]
                for p in value["partitions"]
            }
        except (KeyError, TypeError, ValueError) as error:
            raise NodeFormatError(REASSIGN_PARTITIONS, data, repr(error)) from None


class LogDirEventNode:
    """/log_dir_event_notification/log_dir_event_N: a broker lost a data directory."""

    prefix = f"{LOG_DIR_EVENTS}/log_dir_event_"
    failure = 1

    @staticmethod
    def encode(broker_id: int) -> bytes:
        """Version 1."""
        return write_json({"version": 1, "broker": broker_id, "event": LogDirEventNode.failure})

    @staticmethod
    def decode(data: bytes) -> int:
        """The broker that lost it."""
        return _integer(LOG_DIR_EVENTS, data, read_json(LOG_DIR_EVENTS, data), "broker")


class ProducerIdBlock(NamedTuple):
    """The producer ids ``start`` to ``end`` (inclusive), which ``broker_id`` may give out."""

    broker_id: int
    start: int
    end: int


class ProducerIdBlockNode:
    """/latest_producer_id_block: the highest block that was taken."""

    path = PRODUCER_ID_BLOCK

    @staticmethod
    def encode(block: ProducerIdBlock) -> bytes:
        """Version 1."""
        return write_json(
            {
                "version": 1,
                "broker": block.broker_id,
                "block_start": str(block.start),
                "block_end": str(block.end),
            }
        )

    @staticmethod
    def decode(data: bytes) -> ProducerIdBlock:
        """The block."""
        value = read_json(PRODUCER_ID_BLOCK, data)
        try:
            return ProducerIdBlock(int(value["broker"]), int(value["block_start"]), int(value["block_end"]))
        except (KeyError, TypeError, ValueError) as error:
            raise NodeFormatError(PRODUCER_ID_BLOCK, data, repr(error)) from None


def _integer(path: str, data: bytes, value: Mapping[str, Any], field: str) -> int:
    try:
        return int(value[field])
    except (KeyError, TypeError, ValueError) as error:
        raise NodeFormatError(path, data, repr(error)) from None
