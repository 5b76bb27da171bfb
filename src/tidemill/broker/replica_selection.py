"""Which replica a consumer reads from (KIP-392): ``replica.selector.class``.

The leader of a partition answers a consumer's fetch with the id of another replica where the selector names
one; the consumer then reads there until its metadata is old. To choose from are the leader and those in sync
that have the offset that is asked for. Kafka's selector is known by its name; a function of one's own gets
the topic, the partition, the client and the replicas, and answers the id of one of these, or None.

Source: KIP-392; Apache Kafka, ``ReplicaManager.findPreferredReadReplica``, ``RackAwareReplicaSelector``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tidemill.broker.fetch import FetchRequest
from tidemill.broker.fetch_sessions import FetchPart
from tidemill.broker.metadata import BrokerImage
from tidemill.model.ports import Clock
from tidemill.replication.partition import Partition

log = logging.getLogger("tidemill.replication")

THIS_ONE = -1
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
TOLD_MAX = 20


class ReplicaView(NamedTuple):
    """A replica that a consumer may read from."""

    broker_id: int
    rack: str
    end_offset: int
    """It has the log up to here."""
    behind_ms: int
    """So long ago it last had everything that the leader had; 0 for the leader."""
    is_leader: bool


class ClientView(NamedTuple):
    """The consumer that asks."""

    rack: str
    """Its ``client.rack``; empty when it has none."""
    address: str
    principal: str
    listener: str


Selector = Callable[[str, int, ClientView, Sequence[ReplicaView]], int | None]


def rack_aware(topic: str, partition: int, client: ClientView, replicas: Sequence[ReplicaView]) -> int | None:
    """The replica in the client's rack: the leader if it is there, else the one that has most."""
    near = [one for one in replicas if client.rack and one.rack == client.rack]
    if not near or any(one.is_leader for one in near):
        return None
    return max(near, key=lambda one: (one.end_offset, -one.behind_ms, one.broker_id)).broker_id


class ReplicaSelection:
    """A selector at work for the leader's side of fetches. One that fails chooses the leader."""

    def __init__(
        self, name: str, select: Selector, brokers: Callable[[], Mapping[int, BrokerImage]], clock: Clock
    ) -> None:
        self._name = name
        self._select = select
        self._brokers = brokers
        """Those that live, by id."""
        self._clock = clock
        self._told: set[str] = set()

    def __call__(self, request: FetchRequest, part: FetchPart) -> int:
        """The broker that the consumer shall read ``part`` from; -1: this one."""
        partition = part.partition
        if partition is None or (self._select is rack_aware and not request.rack):
            return THIS_ONE
        peer = request.connection.context
        client = ClientView(
            request.rack.decode(errors="replace"), peer.address, peer.principal, peer.listener.name
        )
        replicas = self._replicas(partition, int(part.offset), client.listener)
        if len(replicas) < 2:
            return THIS_ONE
        try:
            chosen = self._select(partition.topic, int(partition.index), client, replicas)
        except (Exception, SystemExit) as problem:  # noqa: BLE001 - told, and nothing is chosen
            self._tell(f"{type(problem).__name__}: {problem}")
            return THIS_ONE
        if chosen is None or chosen == partition.leader:
            return THIS_ONE
        if not any(chosen == one.broker_id for one in replicas):
            self._tell(f"it chose {chosen!r}, which is none of the replicas that it was given")
            return THIS_ONE
        return int(chosen)

    def _replicas(self, partition: Partition, offset: int, listener: str) -> list[ReplicaView]:
        """The leader first; others if they are in sync, and have the offset and the client's listener."""
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

    def _tell(self, problem: str) -> None:
        if problem not in self._told and len(self._told) < TOLD_MAX:
            self._told.add(problem)
            log.error("the replica selector %s failed, consumers read from leaders: %s", self._name, problem)
