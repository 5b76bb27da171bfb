"""Simulates whole brokers with transactional producers, whose transactions end in all ways."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from unittest import mock

from change_phases import TRANSACTION_PHASES
from full_cluster import BrokerProcess, FullCluster
from log_inspection import records_of
from promises import GROUPS_LOG, Message, PartitionKey, TopicSettings
from simulated_admins import Admin, ClusterAdmin
from simulated_clients import Client, Producer, Refused
from simulated_faults import (
    AT_ONCE_S,
    COORDINATOR_FAULTS,
    LEADER_AHEAD,
    LONG_S,
    ONLY_REPLICA_AWAY,
    OTHERS_AWAY,
)
from simulated_transactions import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TRANSACTIONAL_TOPIC,
    Prepared,
    RepeatingConsumer,
    TransactionalConsumer,
    TransactionalProducer,
)
from transaction_network import MARKER_VERSION, ConfirmedMarkers, TransactionNetwork
from transactions_promise import (
    Fault,
    LogBatch,
    Record,
    TransactionHistory,
    faults_of_history,
    faults_of_log,
)
from uncleaned_logs import UncleanedLogs

from simulation import BATCHES, Node
from tidemill.broker.finalized_features import FinalizedFeatures
from tidemill.coordination.topic_image import TRANSACTION_TOPIC
from tidemill.model.types import TopicPartition
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX
from tidemill.net.link import LinkError
from tidemill.records.batch import Batch
from tidemill.records.end_transaction_marker import read_marker
from tidemill.records.record_reader import iter_stored, read_stored
from tidemill.replication.partition import Partition
from tidemill.transactions import transaction_metadata, transaction_state_manager
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

ENDS = 25
"""And until so many transactions have ended."""
ENDED = ("transactions ended by commit", "transactions ended by abort", "transactional producers fenced")
PLAIN_BATCHES = 100
"""Acknowledged batches, with those of transactions."""
PLAIN_PAUSE_S = 0.3
TRANSACTION_SETTINGS = {
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.segment.bytes": "3000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
    "add.partitions.to.txn.retry.backoff.max.ms": "100",
}
EXPIRY_SETTINGS = {
    "transactional.id.expiration.ms": "1500",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
}
EXPIRY_SHARE = 0.2
"""The share of seeds in which unused transactional ids expire soon."""
FEW_EPOCHS, FEW_EPOCHS_SHARE = 6, 0.3
"""The last epoch of a producer, in a share of the seeds; others never come to the last one."""
WITH_LAST_EPOCH = (transaction_metadata, transaction_state_manager)
ONE_REPLICA_SHARE = 0.3
"""The share of seeds in which partitions have one replica: they have no leader while its broker is down."""
MOVED_SHARE, MOVE_PAUSE_S = 0.3, 1.0
"""The share of seeds in which partitions move to other brokers."""
TWO_PHASE_SHARE = 0.4
"""The share of transactional ids of version 2 with a two-phase commit."""
ONLY_REPLICA_AIMED = 3
"""The ends of the only replica of a partition, while transactions end."""
COMPACTED_SHARE = 0.7
"""The share of the seeds with a compacted topic whose transactional topic is compacted too."""
PASSES = 0.03
"""The share of the fetches of a compacted partition with which a consumer begins again."""
AWAY_S = 5.5
"""For so long at least brokers are away: longer than an append of a coordinator may take."""
AHEAD_S = (0.05, 0.2, 0.6)
"""For so long followers receive nothing from a leader before it ends."""
OPERATOR_PAUSE_S = 5.0
STATE_PARTITIONS = (1, 1, 3)
"""With several ones, a broker coordinates some of the transactional ids."""


class Operator(Client):
    """Ends hanging transactions."""

    async def abort(self, partition: int, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        """Writes an abort marker into a partition."""
        topic = WritableTxnMarkerTopic(name=self.topic, partition_indexes=[partition])
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=epoch,
            transaction_result=False,
            coordinator_epoch=coordinator_epoch,
            topics=[topic],
        )
        await self.write(partition, WriteTxnMarkersRequest(markers=[marker]))

    async def write(self, partition: int, request: WriteTxnMarkersRequest) -> None:
        """Sends markers to the leader of a partition."""
        try:
            address = await self.leader(partition)
            answer = await self.ask(address, ApiKey.WRITE_TXN_MARKERS, MARKER_VERSION, request)
        except (LinkError, Refused, TimeoutError) as problem:
            self.events.add(f"{type(problem).__name__}: {problem}")
        else:
            self.events.add(f"sends {request} to {self.topic}-{partition}: {answer}")


class TransactionCluster(FullCluster):
    """A whole cluster with transactional clients."""

    def __init__(self, seed: int, batches: int = BATCHES) -> None:
        super().__init__(seed, min(batches, PLAIN_BATCHES))
        random = self.random
        names: tuple[str, ...] = (*self.phase_names, *TRANSACTION_PHASES)
        self.phase_names = names
        self.history = TransactionHistory(self.loop.time, self._broken_promise)
        self.history.has_lost_state = self._has_lost_state
        self.transaction_network = TransactionNetwork(
            seed,
            self.events,
            ended=lambda: self._begun_s is None or self.faults.ended,
            later=lambda delay_s, call: self.network.world_timer(self.loop.time() + delay_s, call),
            deliver=self._deliver_marker,
        )
        self.confirmed_markers = ConfirmedMarkers(
            lambda tp, text: self._broken_promise(Fault("markers", text, tp))
        )
        self._delivered = 0
        self._ended_by_operator: set[int] = set()
        """Producer ids with markers of the operator."""
        self._aborted_s = 0.0
        """When the operator has looked last for hanging transactions."""
        self.transaction_partitions = random.choice((1, 2, 3))
        self.transactional_config = self._draw_transactional_config()
        self.promises.settings[TRANSACTIONAL_TOPIC] = TopicSettings(
            min_isr=self.min_isr_default,
            compacts=self.compacts_transactions,
            delete_retention_ms=int(self.transactional_config.get("delete.retention.ms", "86400000")),
        )
        self.uncleaned = UncleanedLogs()
        self.state_min_isr = random.choice((1, 2))
        self.promises.settings[TRANSACTION_TOPIC] = TopicSettings(
            min_isr=self.state_min_isr, compacts=self.compacted.is_compacted
        )
        luck = Random(f"transactions {seed}")
        self.state_logs: list[PartitionKey] = [
            (TRANSACTION_TOPIC, number) for number in range(luck.choice(STATE_PARTITIONS))
        ]
        self.has_few_epochs = luck.random() < FEW_EPOCHS_SHARE
        self.has_expiry = self.history.ids_expire = luck.random() < EXPIRY_SHARE
        self.has_one_replica = luck.random() < ONE_REPLICA_SHARE
        self.feature_version = random.choice((1, 2, 2))
        """The finalized ``transaction.version`` of the cluster."""
        version = random.choice((1, self.feature_version, self.feature_version))
        self.prepared: dict[int, Prepared] = {
            number: Prepared() for number in range(3) if version > 1 and luck.random() < TWO_PHASE_SHARE
        }
        """By the number of a transactional id that uses a two-phase commit."""
        two_phase_ids = frozenset(f"id-{number}" for number in self.prepared)
        self.promises.coordinators.transactions.two_phase_ids = two_phase_ids
        self.movers: list[ClusterAdmin] = []
        if luck.random() < MOVED_SHARE and not self.has_one_replica:
            self.movers.append(self._make_mover())
        pause_s = random.choice((0.01, 0.05, 0.2))
        self.transactional_producers = [
            self._client(
                TransactionalProducer,
                f"transactional-{number}-{letter}",
                TRANSACTIONAL_TOPIC,
                transactional_id=f"id-{number}",
                version=version if random.random() < 0.8 or number in self.prepared else 1,
                partitions=self.transaction_partitions,
                history=self.history,
                phases=self.phases,
                hold_answer=self.transaction_network.hold_answer,
                prepared=self.prepared.get(number),
                pause_s=pause_s,
            )
            for number in range(random.choice((1, 2, 3)))
            for letter in "ab"[: random.choice((1, 2, 2))]
        ]

    def _draw_transactional_config(self) -> dict[str, str]:
        luck = Random(f"transactional topic {self.seed}")
        self.compacts_transactions = self.compacted.is_compacted and luck.random() < COMPACTED_SHARE
        config = {"segment.bytes": str(luck.choice((1000, 3000, 20_000)))}
        if self.compacts_transactions:
            config = {
                "segment.bytes": luck.choice(("1000", "3000")),
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": luck.choice(("0.01", "0.2")),
                "delete.retention.ms": luck.choice(("0", "300", "2000", "20000")),
            }
        return {**config, "min.insync.replicas": str(self.min_isr_default)}

    def cleaning_begins(self, tp: PartitionKey, partition: Partition, data: bytes) -> None:
        if tp[0] == TRANSACTIONAL_TOPIC:
            self.events.count("cleanings of partitions with transactions")
            committed = int(partition.high_watermark)
            batches = log_batches(data, has_messages=True)
            self.uncleaned.add(tp, [one for one in batches if one.last < committed])

    def _make_mover(self) -> ClusterAdmin:
        mover: ClusterAdmin = self._client(
            ClusterAdmin,
            "transactional-mover",
            TRANSACTIONAL_TOPIC,
            phases=self.phases,
            partitions=self.transaction_partitions,
            brokers=[node.node_id for node in self.nodes],
            temporary_config={},
            pause_s=MOVE_PAUSE_S,
            only_moves=True,
        )
        return mover

    def _broken_promise(self, fault: Fault) -> None:
        """A promise of transactions is broken, unless a log with a part of it has lost records."""
        logs = self.state_logs if fault.tp is None else [*self.state_logs, fault.tp]
        if fault.promise == "transactional-offsets":
            logs = [*logs, GROUPS_LOG]
        if any(self.promises.may_forget(tp) for tp in logs if tp in self.promises.partitions):
            self.promises.excused("records-lost-before")
        else:
            self.promises.broken(fault.promise, fault.text)

    def _has_lost_state(self) -> bool:
        known = [tp for tp in self.state_logs if tp in self.promises.partitions]
        return any(self.promises.may_forget(tp) for tp in known)

    def more_settings(self) -> dict[str, str]:
        settings = {
            **TRANSACTION_SETTINGS,
            "transaction.state.log.min.isr": str(self.state_min_isr),
            "transaction.state.log.num.partitions": str(len(self.state_logs)),
            "transaction.two.phase.commit.enable": str(bool(self.prepared)).lower(),
        }
        return {**settings, **EXPIRY_SETTINGS} if self.has_expiry else settings

    def patches(self) -> list[Any]:
        version = property(lambda features: self.feature_version)
        found = [
            *super().patches(),
            *self.transaction_network.patches(),
            *self.confirmed_markers.patches(),
            mock.patch.object(FinalizedFeatures, "transaction_version", version),
        ]
        if self.has_few_epochs:
            # Otherwise no producer would need another id.
            found += [mock.patch.object(one, "LAST_EPOCH", FEW_EPOCHS) for one in WITH_LAST_EPOCH]
            found.append(mock.patch.object(transaction_metadata, "FENCED_EPOCH", FEW_EPOCHS + 1))
        return found

    async def prepare(self) -> None:
        await super().prepare()
        admin: Admin = self._client(Admin, "admin", TRANSACTIONAL_TOPIC)
        replicas = 1 if self.has_one_replica else 3
        await admin.make(self.transaction_partitions, self.transactional_config, replicas)
        for partition in range(self.transaction_partitions):
            for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
                name = "committed" if isolation == READ_COMMITTED else "uncommitted"
                self.consumers.append(
                    self._client(
                        TransactionalConsumer,
                        f"{name}-{partition}",
                        TRANSACTIONAL_TOPIC,
                        partition=partition,
                        isolation=isolation,
                        history=self.history,
                    )
                )

            if self.compacts_transactions:
                self.consumers.append(
                    self._client(
                        RepeatingConsumer,
                        f"repeating-{partition}",
                        TRANSACTIONAL_TOPIC,
                        partition=partition,
                        isolation=READ_COMMITTED,
                        history=self.history,
                        again=PASSES,
                    )
                )

    def _make_producer(self, number: int, pause_s: float, *, must_answer: bool) -> Producer:
        """Other producers are slow."""
        return super()._make_producer(number, PLAIN_PAUSE_S, must_answer=must_answer)

    def more_clients(self) -> list[Client]:
        return [*super().more_clients(), *self.transactional_producers, *self.movers]

    @property
    def _is_done(self) -> bool:
        ends = sum(self.events.counts.get(end, 0) for end in ENDED)
        return super()._is_done and ends >= ENDS

    def _look(self) -> None:
        super()._look()
        now, promise = self.loop.time(), self.promises.coordinators.transactions
        for node in self.nodes:
            if isinstance(node.server, BrokerProcess) and not node.process.paused:
                for shard in node.server.server.broker.transaction_coordinator.runtime.shards.values():
                    promise.look(shard, now)

    def _deliver_marker(self, where: TopicPartition, request: WriteTxnMarkersRequest) -> None:
        """A request with a marker arrives over a connection that nobody waits for."""
        self._delivered += 1
        process = self.process(f"late-marker-{self._delivered}")
        sender: Operator = self._client(Operator, process.name, where.topic)
        self.loop.create_task(sender.write(where.partition, request), context=process.context)

    # -- an operator

    def _help_as_operator(self) -> None:
        """Also ends transactions that the coordinator does not know, because logs have lost records."""
        super()._help_as_operator()
        now = self.loop.time()
        if now - self._aborted_s < OPERATOR_PAUSE_S:
            return
        self._aborted_s = now
        for tp in self.promises.partitions:
            if not (self.promises.may_forget(tp) or any(map(self.promises.may_forget, self.state_logs))):
                continue
            for _, leader in self._replicas(tp):
                if leader.is_leader and not leader.is_offline:
                    self._abort_hanging(tp, leader)

    def _abort_hanging(self, tp: PartitionKey, leader: Partition) -> None:
        """As ``tidemill transaction abort`` does, for each open transaction of a partition."""
        for producer_id, entry in leader.log.producer_state.entries.items():
            if entry.transaction_first_offset < 0:
                continue
            self.promises.excused("needs-operator")
            self._ended_by_operator.add(int(producer_id))
            process = self.process(f"operator-{producer_id}-{self.loop.time():.0f}")
            operator: Operator = self._client(Operator, process.name, tp[0])
            abort = operator.abort(tp[1], producer_id, int(entry.epoch), max(0, int(entry.coordinator_epoch)))
            self.loop.create_task(abort, context=process.context)

    # -- faults

    def cluster_faults(self) -> dict[str, Callable[[Node], bool]]:
        kill, pause = COORDINATOR_FAULTS
        return {
            **super().cluster_faults(),
            kill: lambda node: self.faults.kill(self._coordinator(node)),
            pause: lambda node: self.faults.pause(self._coordinator(node)),
            OTHERS_AWAY: lambda node: self.keep_others_away(self._coordinator(node)),
            LEADER_AHEAD: self.lose_leader_ahead,
            ONLY_REPLICA_AWAY: self.keep_only_replica_away,
        }

    def own_aims(self) -> list[tuple[str, str]]:
        phases = ("transaction open", "transaction open", "transaction ended")
        aims = [(LEADER_AHEAD, phase) for phase in phases]
        if self.state_min_isr > 1:
            # The decision, or the completion, cannot be committed.
            aims += [(OTHERS_AWAY, "transaction end asked")] * 2 + [(OTHERS_AWAY, "transaction ended")]
        if self.has_one_replica:
            aims += [(ONLY_REPLICA_AWAY, "transaction end asked")] * ONLY_REPLICA_AIMED
        return aims

    def keep_others_away(self, node: Node) -> bool:
        """All brokers but one end, and are away for longer than an append of a coordinator may take."""
        others = [one for one in self.nodes if one is not node]
        done = [self.faults.kill(one, LONG_S / 3, AWAY_S) for one in others]
        self.faults.alone_until_s = self.loop.time() + AWAY_S
        return any(done)

    def keep_only_replica_away(self, node: Node) -> bool:
        """The broker of a partition ends until its session has ended: then the partition has no leader."""
        partition = self.random.randrange(self.transaction_partitions)
        known = self.promises.partitions.get((TRANSACTIONAL_TOPIC, partition))
        leader = node if known is None or known.leader <= 0 else self.node(known.leader)
        return self.faults.kill(leader, LONG_S / 3, self.session_s)

    def lose_leader_ahead(self, node: Node) -> bool:
        """The leader of a partition goes on without its followers for a moment, and ends: it must truncate
        the records of that moment.
        """
        partition = self.random.randrange(self.transaction_partitions)
        known = self.promises.partitions.get((TRANSACTIONAL_TOPIC, partition))
        leader = node if known is None or known.leader <= 0 else self.node(known.leader)
        if not leader.is_running or leader.process.paused:
            return False
        during_s = self.random.choice(AHEAD_S)
        end_s = self.loop.time() + during_s
        held = self.transaction_network.hold_fetches(leader.name, end_s + AT_ONCE_S)

        def end() -> None:
            for one in held:
                one.incoming.held_until_s = 0.0
                if not one.closed:
                    self.network.reset(one)
            self.faults.kill(leader)

        self.network.world_timer(end_s, end)
        return bool(held)

    def _coordinator(self, node: Node) -> Node:
        """Returns a coordinator: one that a producer has sent an EndTxn to, if possible."""
        servers = [one.server.server for one in self.nodes if isinstance(one.server, BrokerProcess)]
        ending = [one.transactional_id for one in self.transactional_producers if one.is_ending]
        log = self.random.choice(self.state_logs)
        if servers and ending:
            runtime = servers[0].broker.transaction_coordinator.runtime
            log = (TRANSACTION_TOPIC, int(runtime.partition_for(self.random.choice(ending))))
        known = self.promises.partitions.get(log)
        return node if known is None or known.leader <= 0 else self.node(known.leader)

    # -- the end

    def _unsettled_state(self) -> str:
        """Also every transaction has ended."""
        problem = super()._unsettled_state()
        for node in self.nodes if not problem else ():
            server = node.server
            if not isinstance(server, BrokerProcess):
                continue
            for shard in server.server.broker.transaction_coordinator.runtime.shards.values():
                for name, one in shard.machine.transactions.items():
                    if one.state not in transaction_metadata.ENDED:
                        problem = f"the transaction of {name} is {one} at {node.name}"
        return problem

    def _check_logs(self) -> None:
        for tp in self.partition_keys() if self.compacts_transactions else ():
            if tp[0] == TRANSACTIONAL_TOPIC:
                for _, partition in self._replicas(tp):
                    self.uncleaned.add(tp, log_batches(records_of(partition), has_messages=True))
                self.promises.compaction.aborted[tp] = self.uncleaned.aborted(tp)
        super()._check_logs()
        logs = {}
        for tp in self.partition_keys():
            (leader,) = [partition for _, partition in self._replicas(tp) if partition.is_leader]
            is_transactional = tp[0] == TRANSACTIONAL_TOPIC
            batches = log_batches(records_of(leader), has_messages=is_transactional)
            if is_transactional and self.compacts_transactions:
                batches = self.uncleaned.batches(tp)
            decided = [one for one in batches if one.producer_id not in self._ended_by_operator]
            without_decision = self.promises.coordinators.transactions.faults_of_markers(tp, decided)
            for fault in (*faults_of_log(tp, batches), *without_decision):
                self._broken_promise(fault)
            if is_transactional:
                logs[tp] = batches
        for fault in faults_of_history(self.history, logs, self._may_be_removed):
            self._broken_promise(fault)
        self._check_stopped()

    def _may_be_removed(self, tp: PartitionKey, record: Record) -> bool:
        """Whether compaction may have removed a committed record before a consumer received it."""
        if not self.compacts_transactions or not self.uncleaned.may_be_removed(tp, record):
            return False
        return self.promises.excused("compacted")


def log_batches(data: bytes, *, has_messages: bool) -> list[LogBatch]:
    """Returns the batches of producers in a log."""
    found = []
    for batch in iter_stored(data):
        if not isinstance(batch, Batch) or batch.producer_id < 0:
            continue
        marker = read_marker(batch) if batch.is_control else None
        if batch.is_control and marker is None:
            continue  # Compaction keeps the frame of a removed marker that has the last epoch of a producer.
        records: tuple[Record, ...] = ()
        if has_messages and not batch.is_control:
            records = tuple(
                Record(one.offset, str(Message.of(one)))
                for one in read_stored(batch, True, UNPACKED_BYTES_MAX)
            )
        found.append(
            LogBatch(
                int(batch.base_offset),
                int(batch.last_offset),
                int(batch.producer_id),
                int(batch.producer_epoch),
                bool(batch.is_transactional),
                None if marker is None else marker.control_type == 1,
                -1 if marker is None else int(marker.coordinator_epoch),
                records,
            )
        )
    return found
