"""The network between transaction coordinators and other brokers: requests that are held, lost or late.

Some orders of events need one slow request, and random delays of packets reach them in few seeds:

- A marker arrives long after its decision, or is sent again because its request or its response was lost.
- A marker arrives once more, over another connection, when the next transaction is open: from the same
  coordinator if each transaction has its own epoch (KIP-890), otherwise from a former one, after a marker of
  its successor. Without an epoch of its own a transaction has no protection against the former case.
- The response to the question whether a partition is in a transaction arrives late, after the marker.
- The followers of a leader receive nothing from it for a moment, while it responds to all others.

:class:`ConfirmedMarkers` is a checker of the promise ``markers``: a leader confirms committed markers only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any
from unittest import mock

from event_log import EventLog
from promises import PartitionKey
from simulated_network import Socket

from tidemill.broker.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from tidemill.broker.replica_fetcher_manager import LeaderEndPoint
from tidemill.broker.transaction_markers import VERSIONS, LeaderDestinations, MarkerWriter, _request
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.transaction_types import MarkerToWrite
from tidemill.model.types import TopicPartition
from tidemill.replication.partition import Partition
from tidemill.transactions.transaction_marker_channel_manager import PartitionMarker
from tidemill.transactions.transaction_metadata import EPOCH_BUMP_VERSION
from tidemill.wire.messages.write_txn_markers import WriteTxnMarkersRequest

SEND_MARKERS, ASK = LeaderDestinations.write, AddPartitionsToTxnManager._ask
BEGIN_FETCHES = LeaderEndPoint.__init__
WRITE, WAIT, APPEND_MARKER = MarkerWriter.write, MarkerWriter.wait, Partition.append_marker
LOST, UNANSWERED, HELD = 0.03, 0.03, 0.08
"""The shares of requests with markers."""
HELD_S_MEANS = (0.05, 0.3, 1.0)
LATE, LATE_S_MEANS = 0.25, (0.01, 0.1, 0.5)
"""The share of markers that arrive once more."""
FORMER_LATE, FORMER_LATE_S_MEAN = 0.7, 0.05
"""The share of markers of a former coordinator that arrive after one of its successor."""
ANSWERS_HELD, ANSWERS_HELD_S_MEAN = 0.1, 0.1
"""The share of questions about partitions."""
AWAITED_S, AWAITED_S_MEAN = 0.1, 0.3
"""How long an answer is held whose transaction ends meanwhile: at least, and on average after that."""
MARKER_VERSION = VERSIONS[1]

MarkerKey = tuple[TopicPartition, int]
"""Partition and producer id."""
Later = Callable[[float, Callable[[], None]], object]
"""Calls a function after so many seconds, whichever processes end meanwhile."""
Deliver = Callable[[TopicPartition, WriteTxnMarkersRequest], None]
"""Sends a request to the leader of a partition, from a machine of its own."""


class TransactionNetwork:
    """Holds, drops and repeats requests, as their seed says."""

    def __init__(
        self, seed: int, events: EventLog, *, ended: Callable[[], bool], later: Later, deliver: Deliver
    ) -> None:
        self._luck = Random(f"transaction network {seed}")
        self._events = events
        self._ended = ended
        """Whether nothing breaks any more."""
        self._later = later
        self._deliver = deliver
        self._sent: dict[MarkerKey, PartitionMarker] = {}
        """The last marker that was sent for a partition and producer."""
        self._former: dict[MarkerKey, PartitionMarker] = {}
        """The last one of a former coordinator."""
        self._awaited: dict[str, asyncio.Event] = {}
        """By transactional id: the next answer about its partitions is held, which this event tells."""
        self._fetchers: list[Socket] = []
        """The ends of the connections over which followers fetch."""

    def patches(self) -> list[Any]:
        """Returns the patches of the program."""
        return [
            mock.patch.object(LeaderDestinations, "write", lambda *of: self._send(*of)),
            mock.patch.object(AddPartitionsToTxnManager, "_ask", lambda *of: self._ask(*of)),
            mock.patch.object(Partition, "append_marker", lambda *of: self._append_marker(*of)),
            mock.patch.object(LeaderEndPoint, "__init__", lambda *of: self._begin_fetches(*of)),
        ]

    def hold_answer(self, transactional_id: str) -> asyncio.Event:
        """The next question about partitions of a transactional id gets its answer late.

        Returns an event that is set when the answer is held.
        """
        return self._awaited.setdefault(transactional_id, asyncio.Event())

    def _begin_fetches(self, end_point: LeaderEndPoint, link: Any, *of: Any) -> None:
        """A follower fetches over another connection."""
        BEGIN_FETCHES(end_point, link, *of)
        self._fetchers = [one for one in self._fetchers if not one.closed]
        self._fetchers.append(link._socket)

    def hold_fetches(self, leader: str, until_s: float) -> list[Socket]:
        """Followers receive nothing from a leader until then. Returns their ends of the connections."""
        held = [one for one in self._fetchers if not one.closed and one.incoming.source.name == leader]
        for one in held:
            one.incoming.held_until_s = until_s
        return held

    async def _send(
        self, destinations: LeaderDestinations, broker_id: int, markers: Sequence[PartitionMarker]
    ) -> Mapping[tuple[int, TopicPartition], ErrorCode]:
        """A coordinator sends markers to a leader."""
        for one in markers:
            key = (one.partition, one.marker.producer.producer_id)
            # The epoch of now, also if the coordinator gets a later one.
            sent = one._replace(coordinator_epoch=partial(int, one.coordinator_epoch()))
            before, self._sent[key] = self._sent.get(key, sent), sent
            if before.coordinator_epoch() < sent.coordinator_epoch():
                self._former[key] = before
            if one.marker.client_version >= EPOCH_BUMP_VERSION and self._luck.random() < LATE:
                self._arrive_late(sent, self._luck.expovariate(1 / self._luck.choice(LATE_S_MEANS)))
        luck = self._luck.random()
        if broker_id == destinations._broker.node_id or self._ended():
            return await SEND_MARKERS(destinations, broker_id, markers)
        if luck < LOST:
            self._events.count("requests with markers lost")
            raise KafkaError("the connection was reset before the request", ErrorCode.NETWORK_EXCEPTION)
        if luck > 1 - HELD:
            self._events.count("requests with markers held")
            await asyncio.sleep(self._luck.expovariate(1 / self._luck.choice(HELD_S_MEANS)))
        errors = await SEND_MARKERS(destinations, broker_id, markers)
        if LOST <= luck < LOST + UNANSWERED:
            self._events.count("responses to markers lost")
            raise KafkaError("the connection was reset before the response", ErrorCode.NETWORK_EXCEPTION)
        return errors

    def _append_marker(self, partition: Partition, *of: Any) -> Any:
        """A leader appends a marker. One of a former coordinator may arrive after it."""
        result = APPEND_MARKER(partition, *of)
        _, producer_id, _, coordinator_epoch, *_ = of
        key = (TopicPartition(partition.topic, int(partition.index)), producer_id)
        former = self._former.get(key)
        if former is not None and former.coordinator_epoch() < coordinator_epoch:
            del self._former[key]
            if self._luck.random() < FORMER_LATE:
                self._events.count("markers of former coordinators that arrive late")
                self._arrive_late(former, self._luck.expovariate(1 / FORMER_LATE_S_MEAN))
        return result

    def _arrive_late(self, one: PartitionMarker, delay_s: float) -> None:
        if self._ended():
            return

        def arrive() -> None:
            if not self._ended():
                self._events.count("markers that arrive late")
                self._deliver(one.partition, _request([one]))

        self._later(delay_s, arrive)

    async def _ask(self, manager: AddPartitionsToTxnManager, name: str, *of: Any) -> Any:
        """A leader asks a coordinator about partitions."""
        errors = await ASK(manager, name, *of)
        awaited = self._awaited.pop(name, None)
        is_held = awaited is not None or self._luck.random() < ANSWERS_HELD
        if is_held and not self._ended():
            self._events.count("responses about partitions of transactions held")
            if awaited is None:
                held_s = self._luck.expovariate(1 / ANSWERS_HELD_S_MEAN)
            else:
                awaited.set()
                held_s = AWAITED_S + self._luck.expovariate(1 / AWAITED_S_MEAN)
            await asyncio.sleep(held_s)
        return errors


class ConfirmedMarkers:
    """Checks the responses of leaders to markers."""

    def __init__(self, broken: Callable[[PartitionKey, str], None]) -> None:
        self._broken = broken
        self._written: dict[MarkerWriter, list[tuple[int, MarkerToWrite, Partition, int]]] = {}
        """The markers of a request: number, marker, partition and log end offset after it."""

    def patches(self) -> list[Any]:
        """Returns the patches of the program."""
        return [
            mock.patch.object(MarkerWriter, "write", lambda *of: self._write(*of)),
            mock.patch.object(MarkerWriter, "wait", lambda *of: self._wait(*of)),
        ]

    def _write(self, writer: MarkerWriter, marker: MarkerToWrite, where: TopicPartition) -> None:
        WRITE(writer, marker, where)
        partition = writer._broker.replica_manager.find(where.topic, where.partition)
        if writer.errors[-1] is ErrorCode.NONE and partition is not None:
            # The group coordinator appends its marker later.
            end = -1 if where.topic.startswith("_") else int(partition.log.end_offset)
            self._written.setdefault(writer, []).append((len(writer.errors) - 1, marker, partition, end))

    async def _wait(self, writer: MarkerWriter) -> list[ErrorCode]:
        errors = await WAIT(writer)
        for number, marker, partition, end in self._written.pop(writer, ()):
            if errors[number] is ErrorCode.NONE and partition.is_leader and not partition.is_offline:
                self.confirmed(marker, partition, end)
        return errors

    def confirmed(self, marker: MarkerToWrite, partition: Partition, end: int) -> None:
        """A leader responds that a marker is written: it is committed, and its transaction has ended."""
        tp = (partition.topic, int(partition.index))
        mark = int(partition.high_watermark)
        if end > mark:
            self._broken(tp, f"{tp} confirms {marker} at {end - 1}, and {mark} is committed")
        entry = partition.log.producer_state.entries.get(marker.producer.producer_id)
        if entry is None or entry.transaction_first_offset < 0:
            return
        # A marker with an epoch of its own may follow the begin of the next transaction.
        has_own_epoch = marker.version >= EPOCH_BUMP_VERSION
        if entry.epoch < marker.producer.epoch or (
            entry.epoch == marker.producer.epoch and not has_own_epoch
        ):
            self._broken(tp, f"{tp} confirms {marker}, and the transaction of epoch {entry.epoch} is open")
