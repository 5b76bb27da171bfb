"""Selects the replica that a consumer reads from (KIP-392): ``replica.selector.class``.

The leader responds to the fetch of a consumer with the id of the preferred replica. The consumer then fetches
from that replica until its metadata expires. The selector chooses from the leader and the in-sync replicas
that have the fetch offset. ``replica.selector.class`` is the name of Kafka's selector, or of a function. The
function gets the topic, the partition, the client and the replicas, and returns the id of one of these, or
None.

Source: KIP-392; Apache Kafka, ``ReplicaManager.findPreferredReadReplica``, ``RackAwareReplicaSelector``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tidemill.broker.fetch_reader import ReadReplicaSelector
from tidemill.broker.metadata_cache import BrokerImage
from tidemill.model.system_interfaces import Clock
from tidemill.net.connection import Connection
from tidemill.replication.partition import Partition
from tidemill.wire.fetch_layout import FetchRequest, RequestedPartition

logger = logging.getLogger("tidemill.replication")

THIS_BROKER = -1
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LOGGED_MAX = 20


class ReplicaView(NamedTuple):
    """A replica that a consumer may read from."""

    broker_id: int
    rack: str
    end_offset: int
    """The log end offset of the replica."""
    behind_ms: int
    """The time since the replica last had all records of the leader; 0 for the leader."""
    is_leader: bool


class ClientView(NamedTuple):
    """The consumer that fetches."""

    rack: str
    """The ``client.rack``; empty without one."""
    address: str
    principal: str
    listener: str


Selector = Callable[[str, int, ClientView, Sequence[ReplicaView]], int | None]


def rack_aware(topic: str, partition: int, client: ClientView, replicas: Sequence[ReplicaView]) -> int | None:
    """Selects a replica in the rack of the client: the leader, or the one with the highest log end offset."""
    near = [one for one in replicas if client.rack and one.rack == client.rack]
    if not near or any(one.is_leader for one in near):
        return None
    return max(near, key=lambda one: (one.end_offset, -one.behind_ms, one.broker_id)).broker_id


class ReplicaSelector(ReadReplicaSelector):
    """Applies a selector to the fetches of consumers. If the selector fails, they read from the leader."""

    def __init__(
        self, name: str, select: Selector, brokers: Callable[[], Mapping[int, BrokerImage]], clock: Clock
    ) -> None:
        self._name = name
        self._select = select
        self._brokers = brokers
        """Returns the live brokers by id."""
        self._clock = clock
        self._logged: set[str] = set()

    def preferred_replica(
        self,
        request: FetchRequest,
        connection: Connection,
        requested: RequestedPartition,
        partition: Partition,
    ) -> int:
        """Returns the id of the preferred replica, -1 for this broker."""
        if self._select is rack_aware and not request.rack:
            return THIS_BROKER
        peer = connection.peer
        client = ClientView(
            request.rack.decode(errors="replace"), peer.address, peer.principal, peer.listener.name
        )
        replicas = self._replicas(partition, int(requested.offset), client.listener)
        if len(replicas) < 2:
            return THIS_BROKER
        try:
            chosen = self._select(partition.topic, int(partition.index), client, replicas)
        except (Exception, SystemExit) as problem:  # noqa: BLE001 - logged; the leader is used
            self._log_failure(f"{type(problem).__name__}: {problem}")
            return THIS_BROKER
        if chosen is None or chosen == partition.leader:
            return THIS_BROKER
        if not any(chosen == one.broker_id for one in replicas):
            self._log_failure(f"it returned {chosen!r}, which is not one of the replicas")
            return THIS_BROKER
        return int(chosen)

    def _replicas(self, partition: Partition, offset: int, listener: str) -> list[ReplicaView]:
        """Returns the leader, and the in-sync replicas with the offset and the listener of the client."""
        brokers = self._brokers()
        end = int(partition.log.end_offset)
        leader = brokers.get(int(partition.leader))
        rack = leader.rack if leader is not None else None
        views = [ReplicaView(int(partition.leader), rack or "", end, 0, True)]
        replication = partition.replication
        if replication is None or not partition.is_leader:
            return views
        now_ms = self._clock.monotonic_ms()
        for broker, follower in replication.followers.items():
            image = brokers.get(broker)
            if image is None or listener not in image.endpoints or broker not in partition.isr:
                continue
            if follower.start_offset <= offset <= follower.end_offset:
                behind_ms = 0 if follower.end_offset == end else max(now_ms - int(follower.caught_up_ms), 0)
                views.append(
                    ReplicaView(broker, image.rack or "", int(follower.end_offset), behind_ms, False)
                )
        return views

    def _log_failure(self, problem: str) -> None:
        if problem not in self._logged and len(self._logged) < LOGGED_MAX:
            self._logged.add(problem)
            logger.error(
                "the replica selector %s failed, consumers read from leaders: %s", self._name, problem
            )
