"""The promises of a cluster to its clients, and their checkers.

:data:`PROMISES` and :data:`EXCUSES` are the tables of ``docs/decisions/promises.md``. A checker names the
broken promise. If a checker accepts a deviation, it names the excuse, which is counted. Clients report their
requests and responses; the world reports the content of the store and the losses of machines. Times are
simulated seconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from acknowledged_holders import NEVER, Holders
from commands_promise import CommandsPromise
from committed_promise import CommittedPromise
from compaction_promise import CompactionPromise
from coordinator_promise import CoordinatorPromise
from deposed_leaders import NEVER as NO_SESSION
from deposed_leaders import DeposedLeaders
from disk_state_promise import DiskStatePromise
from event_log import EventLog
from keyed_messages import HEADER, is_tombstone, key_of
from log_state_promise import LogStatePromise
from min_insync_setting import MinInsyncSetting
from requested_deletions import RequestedDeletions
from requested_reassignments import RequestedReassignments
from restart_promise import RestartPromise
from simulated_loop import wall_ms_at

from tidemill.coordination.lost_replicas import LostReplicas

PROMISES = {
    "acks-all": "A record acknowledged with acks=all is readable as long as one replica holds it that was "
    "in the ISR or eligible at the acknowledgement and has lost nothing since.",
    "in-sync": "A replica of the ISR has every record acknowledged with acks=all, unless the replica has "
    "lost records since.",
    "read": "A record that a consumer has read is kept like a record acknowledged with acks=all.",
    "acks-1": "A record acknowledged with acks=1 is readable as long as its leader remains the leader and "
    "has lost nothing.",
    "acks-0": "A log contains a record sent with acks=0 at most once.",
    "min-isr": "acks=all is acknowledged only when min.insync.replicas replicas, or all replicas if there "
    "are fewer, have the record.",
    "flush": "With flush.messages=1 no power failure loses an acknowledged record, on any number of "
    "machines.",
    "restart": "A killed process loses nothing of its logs. A power failure removes the end of a log, and "
    "no record before a remaining one. After a clean shutdown everything is on the disk.",
    "recovery-point": "Everything below the recovery point of a log is on the disk.",
    "checkpoints": "Before a log continues, no checkpoint claims a higher flushed, deleted or cleaned "
    "offset than the log has.",
    "no-hole": "The batches of a log follow each other without gap or overlap, except for gaps of "
    "compaction. The log ends with the last batch.",
    "truncation": "After a truncation is on the disk, no power failure restores the truncated records.",
    "reported-log-start": "A log start offset survives a power failure before a follower reports it to its "
    "leader, and before a leader returns it to a client that requested it.",
    "reported-loss": "A start that finds fewer records than before reports the loss, and stores the report "
    "before it truncates.",
    "one-batch": "In a leader epoch an offset is written once: all replicas that have the batch have the "
    "same batch.",
    "epochs": "A replica knows the leader epoch of each of its records. If all records are deleted, it "
    "knows the last leader epoch, unless a disk loses unflushed data.",
    "producers": "A replica knows the last batch of each producer in its log, and no other batch.",
    "eligible": "While a partition has a leader and enough in-sync replicas for commits, no other replica "
    "is eligible.",
    "committed": "A leader commits a record when every replica of the ISR and min.insync.replicas replicas "
    "have it, with flush.messages=1 on their disks. No replica treats more records as committed.",
    "follower-position": "A leader uses the position of a follower from its last fetch, in the same leader "
    "epoch, of its latest registration, and since it left the ISR. It commits nothing alone while it "
    "requests a larger ISR, or while another replica was caught up a moment ago.",
    "follows": "A follower appends the records of its leader to the end of its log when its truncation is "
    "on the disk. Then both have the same records. It truncates all records that differ, and no others.",
    "reported-position": "A position that a follower reports to its leader survives a power failure: the "
    "log start offset, and with flush.messages=1 the log end offset. Records that the machine may have lost "
    "do not count.",
    "stops-leading": "No request waits for commits at a broker that no longer leads the partition. A broker "
    "leads nothing without a session, and nothing while it reaches neither the store nor the in-sync "
    "replicas.",
    "one-record": "An offset never holds two records, as seen by readers and by producers with a response.",
    "high-watermark": "The high watermark that a consumer receives does not decrease for this consumer.",
    "no-gap": "A consumer misses no record between the log start offset and the log end offset.",
    "no-invention": "A log contains only records that were sent to it, each at most as often as it was sent.",
    "order": "A log contains the records of an idempotent producer once, in their order, without a gap.",
    "sequence": "An idempotent producer whose records were all acknowledged gets no sequence error.",
    "log-start": "Only DeleteRecords and retention advance the log start offset.",
    "delete-records": "Records below an offset that DeleteRecords has confirmed are not readable, as long "
    "as one replica exists that was in the ISR then and has reported no loss since. No replica that is in "
    "the ISR then, or joins the ISR with such a replica, has a lower log start offset.",
    "retention": "Retention keeps the newest retention.bytes, and the records that are younger than "
    "retention.ms. Records that it removes leave the disk.",
    "compaction": "Compaction removes a record only when a newer record of its key is committed and on the "
    "disk, or a tombstone after delete.retention.ms, or a record of an aborted transaction. A marker of a "
    "transaction stays until delete.retention.ms after the removal of its last record; its batch may stay "
    "longer without it. Offsets and order stay the same, and no removed record returns.",
    "new-topic": "A recreated topic contains no record of the former topic of the same name. No broker "
    "forgets the directory of a deleted topic.",
    "deletion": "A deletion by id, or by a node in the store, deletes the topic that existed then, and no "
    "topic that is created under its name later.",
    "one-leader": "A leader epoch has one leader.",
    "session": "A leader whose session has ended, and from which no replica fetches, stops accepting writes "
    "within another session timeout.",
    "election": "No replica with a loss that the controller has read is elected while another replica has "
    "every committed record and has reported no loss since it was in the ISR.",
    "decision": "Each partition state that a controller writes follows from the previous state and from the "
    "data that the controller has read: leader, ISR, eligible and lost replicas, leader epoch.",
    "image": "The topics in the image of the controller equal those in the store. The controller and the "
    "leaders use the configuration that they have read. An updated topic index equals a new index.",
    "losses": "A broker that starts with another disk reports the replicas of the former disk.",
    "one-controller": "A controller epoch has one controller. It writes no state after a later controller "
    "epoch exists.",
    "commands": "A broker executes requests of the newest controller only, for its own registration and "
    "over the newest connection, and has done what it confirms. A controller repeats a request until it has "
    "a response, and not afterwards.",
    "leader-epoch": "A follower receives offsets only from a leader in its own leader epoch.",
    "redundancy": "A reassignment removes a replica only when all remaining replicas are in sync. A "
    "cancelled or replaced reassignment removes its added replicas only if enough replicas with every "
    "committed record remain: as many as commits need, or as many as before.",
    "reassignment": "A partition moves to the replicas that a client requested, or back after a "
    "cancellation. At rest it has the replicas of the last accepted request.",
    "positions": "A committed offset that a group has received is found again, or a later one.",
    "generation": "A member of an old generation commits nothing after the next generation has its "
    "assignment.",
    "owner": "In a generation of a group a partition has one owner.",
    "coordinator": "A coordinator knows and returns the committed part of its log while its broker leads "
    "the partition. Members without heartbeat, or without JoinGroup in time, leave their group. A "
    "transaction with all its markers is completed.",
    "producer-id": "One producer receives a producer id.",
    "aborted-read": "A read_committed consumer receives no record of a transaction without a commit: of "
    "one that was aborted, has timed out, or is open.",
    "committed-write": "A record that was acknowledged in a committed transaction is readable, once. A "
    "transaction that is prepared for a two-phase commit is not aborted.",
    "all-or-nothing": "A transaction has the same end in all its partitions. A read_committed consumer "
    "has received all records of committed transactions below its position. No commit of an aborted "
    "transaction is confirmed.",
    "write-read-cycle": "Committed transactions do not read each other's records in a circle.",
    "zombie": "After a producer has begun with a transactional id, no request of an earlier one with the "
    "id succeeds. A log has no record of an earlier epoch of a producer after a later epoch. "
    "If a coordinator aborts a transaction itself, the producer does not have the new epoch.",
    "markers": "At rest a marker ends each transaction of a log. It ends the records of one transaction, "
    "and no marker of an earlier coordinator follows that of a later one. Each marker follows its decision "
    "in the log of transactions. A leader confirms only committed markers.",
    "last-stable": "The last stable offset that a consumer receives does not decrease, and read_committed "
    "consumers receive nothing above it. A transaction is unstable until its marker is below the high "
    "watermark.",
    "transactional-offsets": "Offsets in a transaction take effect with its commit, and never without it.",
    "equal": "At rest all replicas of a partition are equal, and no other broker has a replica.",
    "rest": "The cluster comes to rest after the last fault: every replica is in sync, every reassignment "
    "is complete, a live member of each group owns every partition.",
    "progress": "Producers get acknowledgements, and administrative requests complete, unless faults "
    "prevent it.",
    "no-error": "The program logs no internal error.",
}
"""The guarantees of the cluster, by name."""

FETCH_DELAY_S_MAX = 5.0
"""The maximum time between the send of a fetch, which reports the position of a replica, and its arrival."""
_DONE = {"in-sync": "acknowledged", "min-isr": "acknowledged", "committed": "committed"}

EXCUSES = {
    "lost": "acks-all, read: every replica with the record lost its disk, or its power before a flush",
    "not-trusted": "acks-all, read, flush: a replica reports a loss after a power failure or disk error, "
    "but has every record. It truncates records of unknown state when another replica leads, and the "
    "partition may recover without it",
    "unclean": "election, acks-all, read: an operator requested an election while no replica with every "
    "committed record could lead",
    "records-lost-before": "one-record, in-sync, read, high-watermark, no-gap, order, sequence, positions, "
    "generation, owner, log-start, delete-records, reported-log-start, retention, rest, equal (where "
    "compacted), and all promises of transactions: the partition, or the log of transactions, has lost "
    "committed records in this way",
    "new-leader": "acks-1: the leader changed after the record was sent",
    "recreated": "acks-all, acks-1, read: the topic was deleted",
    "being-deleted": "min-isr: a deletion of the topic removed a replica before the response; losses, "
    "decision: a topic in deletion has no leader",
    "changed-since": "min-isr, committed: the state of the partition has changed since the request was sent",
    "restarted-since": "min-isr, committed: the process of a replica has started or ended since the request "
    "or its fetch was sent, and may have had the record",
    "in-transition": "decision: a controller has written a state, and its process has ended, has stopped "
    "waiting for the response, or has further writes without a known result",
    "duplicate": "acks-all, acks-1, in-sync, min-isr: a batch is a duplicate, and its offset is no longer "
    "known",
    "former-leader": "delete-records: a deposed leader that does not know of it returns its old records, "
    "and confirms a deletion that no other replica receives",
    "former-coordinator": "positions: a deposed coordinator that does not know of it returns its old offsets",
    "deleted-without": "delete-records: the leader was not in the ISR when the records were deleted, and "
    "the replicas of that ISR are gone or have reported a loss",
    "deleted-in-doubt": "sequence: a batch without a response was stored, and was deleted or compacted "
    "before a retry; a later batch, acknowledged between both, too: its sequence is the next one after the "
    "retry",
    "tombstone-unwritten": "coordinator: the write of the tombstone for an offset of a deleted topic "
    "failed, and is not repeated",
    "static-id": "coordinator: a stable group has another member id for a static member than its log: the "
    "member has returned, and the write of the new id is in progress or has failed",
    "in-doubt": "positions: an unanswered commit without a group generation may take effect later",
    "compacted": "acks-all, read, acks-1, restart, no-gap, order, retention, equal, all-or-nothing: a newer "
    "record of the key exists, as `compaction` permits; no-hole, one-batch, epochs, producers, "
    "follower-position, follows: compaction has removed the batches that would show it",
    "aborted-removed": "acks-all, read, acks-1, restart, order: compaction has removed a record of an "
    "aborted transaction, as `compaction` permits",
    "tombstone-expired": "acks-all, read, acks-1, restart, no-gap, order, retention, equal: a tombstone of "
    "the key is older than delete.retention.ms, as `compaction` permits",
    "tombstone-missed": "compaction, equal: a replica that had not fetched a tombstone when other replicas "
    "removed it, or that lost or truncated it, keeps the older records of the key",
    "clock-skew": "compaction, retention, and with `tombstone-expired`: tombstones and records are removed "
    "early, at most by the error of the wall clocks",
    "minimum-not-read": "min-isr, election, acks-all, read: min.insync.replicas was raised a moment ago, "
    "and the leader has not read it yet",
    "unflushed-truncation": "follows, restart: a process had truncated the log, and was killed before the "
    "truncation was on the disk; epochs: an epoch begins at the log end offset of an open or a truncation, "
    "after the last batch that compaction has kept",
    "late-fetch": "follower-position: a fetch of a former process arrives at a leader that knows no later "
    "registration",
    "full-disk": "checkpoints, commands: a full disk has rejected a checkpoint, which is written when there "
    "is space",
    "slow-network": "progress: on a slow network fewer faults take a run to its time limit",
    "needs-operator": "rest, progress: no replica with every committed record is known; an operator decides",
}
"""The deviations that checkers accept, and the promises from which they deviate."""

PartitionKey = tuple[str, int]
"""Topic and partition."""
GROUPS_LOG: PartitionKey = ("__consumer_offsets", 0)
"""The partition that stores all groups."""
LogKey = tuple[str, int, bytes]
"""Topic, partition and topic id: a recreated topic has other logs."""
ALL, LEADER, NONE = -1, 1, 0
ANY_BROKER = -1


class Message(NamedTuple):
    """The identity of a record: its producer, and its number."""

    producer: str
    number: int

    def __repr__(self) -> str:
        return f"{self.producer}:{self.number}"

    def encode(self) -> bytes:
        """Encodes the message as a record's value, of varying length."""
        return f"{self.producer}:{self.number}:{'x' * (self.number * 37 % 90)}".encode()

    @staticmethod
    def decode(value: bytes) -> Message:
        """Decodes a record's value."""
        producer, number, _ = value.decode().split(":")
        return Message(producer, int(number))

    def record(self, is_keyed: bool) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
        """Returns key, value and headers of its record; one with a key may be a tombstone."""
        if not is_keyed:
            return None, self.encode(), []
        if is_tombstone(self):
            return key_of(self), None, [(HEADER, self.encode())]
        return key_of(self), self.encode(), []

    @staticmethod
    def of(record: Any) -> Message:
        """Decodes a read record."""
        value = record.value if record.value is not None else dict(record.headers).get(HEADER)
        return Message.decode(value or b"")


@dataclass(slots=True, kw_only=True)
class Sent:
    """A sent record, as its producer knows it."""

    tp: PartitionKey
    acks: int
    session: int
    """Of an idempotent producer; -1 for others."""
    sequence: int
    topic_id: bytes
    """That the producer wrote to; empty when it named the topic only."""
    first_s: float = 0.0
    """When it was sent first."""
    times: int = 0
    unanswered: int = 0
    settled_s: float | None = None


@dataclass(slots=True)
class LedRecord:
    """A record that was acknowledged with acks=1."""

    message: Message
    epoch: int
    leader: int


@dataclass(slots=True)
class LogHistory:
    """The clients' knowledge of one log."""

    acknowledged: dict[int, tuple[Message, float]] = field(default_factory=dict)
    """With acks=all: record and time of the broker's answer, by offset."""
    read: dict[int, tuple[Message, float]] = field(default_factory=dict)
    led: dict[int, LedRecord] = field(default_factory=dict)
    """With acks=1."""
    deleted_to: int = 0
    """DeleteRecords has answered this offset."""
    delete_tried_to: float = 0
    """DeleteRecords was asked for this offset."""
    deleted_s: float = 0.0
    retention_checked_to: int = 0
    deleted_by: set[int] = field(default_factory=set)
    """The replicas that know of this."""


class UncleanElection(NamedTuple):
    """An unclean election that an operator requested."""

    leader: int
    epoch: int
    able: frozenset[int]
    """The replicas that could lead, as far as the controller knew."""


@dataclass(slots=True)
class PartitionHistory:
    """The store's state of a partition."""

    topic_id: bytes
    holders: Holders
    leader: int = -1
    epoch: int = -1
    changed_s: float = 0.0
    led_s: float = 0.0
    """When the leader changed last."""
    replicas: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    lost_s: dict[int, float] = field(default_factory=dict)
    is_being_deleted: bool = False
    last_leader: int = -1
    is_last_leader_lost: bool = False
    """The broker that led last has nothing of the partition any more."""
    reported_lost: set[int] = field(default_factory=set)
    """Replicas that have reported a loss since they were in sync last."""
    unclean: UncleanElection | None = None
    """The election that an operator has requested, and the controller may write next."""

    @property
    def waits_for_operator(self) -> bool:
        """Whether the partition stays without a leader; once all replicas have reported a loss, one is
        elected.
        """
        return (
            self.leader < 0
            and self.is_last_leader_lost
            and self.holders.is_hopeless
            and not self.reported_lost.issuperset(self.replicas)
        )


class TopicSettings(NamedTuple):
    """The settings of a topic that affect promises."""

    min_isr: int = 1
    flush_each: bool = False
    retention_bytes: int = -1
    retention_ms: int = -1
    compacts: bool = False
    """Its records have keys."""
    delete_retention_ms: int = 86_400_000


class Promises:
    """Checks all promises during a run, and at its end."""

    def __init__(self, events: EventLog, now: Callable[[], float]) -> None:
        self.events = events
        self.now = now
        self.settings: dict[str, TopicSettings] = {}
        self.sent: dict[Message, Sent] = {}
        self.logs: defaultdict[LogKey, LogHistory] = defaultdict(LogHistory)
        self.partitions: dict[PartitionKey, PartitionHistory] = {}
        self.replica_ends: Callable[[PartitionKey], Mapping[int, int]] = lambda tp: {}
        """The log ends of a partition's running replicas, by broker."""
        self.durable_start: Callable[[PartitionKey, int], int] = lambda tp, broker: -1
        """The log start offset of a broker after a power failure; -1 without a log."""
        self.live_start: Callable[[PartitionKey, int], int] = lambda tp, broker: -1
        """The current log start offset of a running broker; -1 without a log."""
        self.synced_end: Callable[[PartitionKey, int], int] = lambda tp, broker: -1
        """Up to where a broker has a partition on its disk; -1 when it has nothing there."""
        self.started_s: Callable[[int], float | None] = lambda broker: None
        """Since when the process of a broker runs."""
        self.has_opened: Callable[[int, PartitionKey], bool] = lambda broker, tp: True
        """Whether the process of a broker has opened the directories in which a log may lie."""
        self.stopped_s: Callable[[int], float] = lambda broker: ALWAYS_RUNNING
        self._ends: dict[tuple[str, LogKey], int] = {}
        self._leaders: dict[tuple[LogKey, int], int] = {}
        self._made_s: dict[bytes, float] = {}
        self._commits: dict[tuple[str, PartitionKey], Commits] = {}
        self._generations: dict[str, dict[tuple[int, str], int]] = {}
        """The generations of each group in their order, by number and leader."""
        self._assignments: dict[str, tuple[int, float]] = {}
        self._owners: dict[tuple[str, int], dict[int, str]] = {}
        """By group and generation: the member that owns a partition."""
        self._producer_ids: dict[int, str] = {}
        self._controller_epoch = 0
        self._registered_s: dict[int, float] = {}
        self._started_s: dict[int, float] = {}
        """When the present process of a broker registered first."""
        self.clock_ahead_ms = 0
        """How much later a machine's wall clock was at most."""
        self.clock_behind_ms = 0
        """How much earlier."""
        self.compaction = CompactionPromise(self)
        self.restart = RestartPromise(self.broken, self.excused, self.is_tombstone_over)
        self.log_state = LogStatePromise(self.broken, self.excused)
        self.disk_state = DiskStatePromise(self.broken)
        self.commits = CommittedPromise(self)
        self.commands = CommandsPromise(self.broken, self.excused)
        self.coordinators = CoordinatorPromise(self.broken, self.excused)
        self.commands.topic_gone = self.coordinators.topic_gone
        self.deposed = DeposedLeaders()
        self.min_insync = MinInsyncSetting(self)
        self.deletions = RequestedDeletions()
        self.reassignments = RequestedReassignments(self.broken)

    def broken(self, promise: str, text: str) -> None:
        """Ends the run."""
        if promise not in PROMISES:
            raise KeyError(promise)
        self.events.violate(f"{promise}: {text}")

    def excused(self, excuse: str) -> bool:
        """Counts an excuse; returns True."""
        if excuse not in EXCUSES:
            raise KeyError(excuse)
        self.events.count(f"excuse {excuse}")
        return True

    # -- wall clocks

    def clock_turned(self, skew_ms: int) -> None:
        """A machine's wall clock was set forward or back."""
        self.clock_ahead_ms = max(self.clock_ahead_ms, skew_ms)
        self.clock_behind_ms = max(self.clock_behind_ms, -skew_ms)

    def is_tombstone_over(self, written_ms: int, retention_ms: int) -> bool:
        """Whether a tombstone of that time may have been removed after ``retention_ms`` by some clock.

        A compaction records the time of removal by its clock, and another compaction removes the tombstone by
        its own clock: if the first is behind and the second ahead, the differences add up.
        """
        return self.is_old_enough(wall_ms_at(self.now()) - written_ms, retention_ms)

    def is_old_enough(self, age_ms: float, retention_ms: int) -> bool:
        """As :meth:`is_tombstone_over`, for a tombstone of that age."""
        if age_ms >= retention_ms:
            return True
        wrong_ms = self.clock_ahead_ms + self.clock_behind_ms
        return age_ms + wrong_ms >= retention_ms and self.excused("clock-skew")

    # -- what the store holds, and what machines lose

    def settings_of(self, topic: str) -> TopicSettings:
        """Returns the settings of a topic."""
        return self.settings.get(topic, TopicSettings())

    def topic_written(
        self,
        topic: str,
        topic_id: bytes,
        replicas: Mapping[int, Sequence[int]],
        adding: Mapping[int, Sequence[int]],
        removing: Mapping[int, Sequence[int]],
    ) -> None:
        """The store has the assignment of a topic."""
        self._made_s.setdefault(topic_id, self.now())
        for index, brokers in replicas.items():
            tp = (topic, index)
            known = self.partitions.get(tp)
            if known is None or known.topic_id != topic_id:
                known = self.partitions[tp] = PartitionHistory(topic_id, Holders(1))
            self._assigned(tp, known, tuple(brokers), tuple(adding.get(index, ())))
            if not known.is_being_deleted:
                self.reassignments.written(
                    tp, topic_id, brokers, adding.get(index, ()), removing.get(index, ())
                )
            known.removing = tuple(removing.get(index, ()))
            known.holders.min_isr = self._min_isr_of(tp, known)

    def _min_isr_of(self, tp: PartitionKey, known: PartitionHistory) -> int:
        """Returns the in-sync replicas that a commit needs, without those that a reassignment adds."""
        return min(self.settings_of(tp[0]).min_isr, len(known.replicas) - len(known.adding))

    def min_isr_written(self, topic: str, min_isr: int) -> None:
        """The store has another ``min.insync.replicas`` for a topic."""
        if self.settings_of(topic).min_isr == min_isr:
            return
        self.settings[topic] = self.settings_of(topic)._replace(min_isr=min_isr)
        for tp, known in self.partitions.items():
            if tp[0] == topic:
                had_forgotten = known.holders.has_forgotten
                if known.holders.eligible and known.leader >= 0:
                    self.events.count("eligible replicas dropped by another min.insync.replicas")
                is_led = known.leader >= 0
                has_ended = is_led and (
                    self.started_s(known.leader) is None
                    or self.deposed.in_touch_s(known.leader) == NO_SESSION
                )
                least = self._min_isr_of(tp, known)
                known.holders.min_isr_changed(least, is_led=is_led, has_ended=has_ended)
                self._note_forgotten(tp, known, had_forgotten)

    def _assigned(
        self, tp: PartitionKey, known: PartitionHistory, replicas: tuple[int, ...], adding: tuple[int, ...]
    ) -> None:
        if not known.is_being_deleted:
            self._check_stopped_move(tp, known, replicas, adding)
        dropped = set(known.replicas) - set(replicas) - set(known.adding)
        if dropped and not known.is_being_deleted:
            late = set(replicas) - set(adding) - set(known.holders.isr)
            if late:
                self.broken(
                    "redundancy",
                    f"{tp} drops {sorted(dropped)} of {known.replicas} while {sorted(late)} are not in the"
                    f" ISR {known.holders.isr}",
                )
        known.replicas, known.adding = replicas, adding
        known.holders.keep(replicas)

    def _check_stopped_move(
        self, tp: PartitionKey, known: PartitionHistory, replicas: tuple[int, ...], adding: tuple[int, ...]
    ) -> None:
        if not set(known.adding) - set(replicas):
            return
        self.events.count("moves stopped or replaced")
        whole = {*known.holders.isr, *known.holders.eligible} & known.holders.trusted
        kept = whole & set(replicas)
        least = min(len(whole), self.settings_of(tp[0]).min_isr, len(replicas) - len(adding))
        if len(kept) < least:
            self.broken(
                "redundancy",
                f"{tp} cancels a reassignment, and of {sorted(whole)} with every committed record it keeps"
                f" {sorted(kept)}, fewer than {least}",
            )

    def deletion_began(self, topic: str) -> None:
        """The store has the deletion mark of the topic: its replicas are deleted one after the other."""
        self._check_deletion(topic)
        for tp, known in self.partitions.items():
            known.is_being_deleted = known.is_being_deleted or tp[0] == topic

    def topic_removed(self, topic: str) -> None:
        """The topic was removed from the store."""
        self._check_deletion(topic)
        for tp in [tp for tp in self.partitions if tp[0] == topic]:
            del self.partitions[tp]
        self.min_insync.topic_removed(topic)

    def topic_id_of(self, topic: str) -> bytes:
        """Returns the id of the topic in the store; empty without a topic."""
        known = self.partitions.get((topic, 0))
        return known.topic_id if known is not None else b""

    def _check_deletion(self, topic: str) -> None:
        topic_id = self.topic_id_of(topic)
        if topic_id and not self.deletions.is_asked(topic, topic_id):
            self.broken("deletion", f"{topic} is deleted with id {topic_id.hex()} without a request")

    def state_written(self, tp: PartitionKey, leader: int, epoch: int, isr: Sequence[int]) -> None:
        """The store has another state of a partition."""
        known = self.partitions.get(tp)
        if known is None:
            return
        had_forgotten = known.holders.has_forgotten
        joined = [broker for broker in isr if broker not in known.holders.isr]
        is_new_epoch = epoch != known.epoch
        unclean, known.unclean = known.unclean, None
        if is_new_epoch and leader >= 0:
            is_asked_for = unclean is not None and (unclean.leader, unclean.epoch) == (leader, epoch)
            self._check_election(tp, known, leader, unclean if is_asked_for else None)
        log = self.logs[*tp, known.topic_id]
        # Nor is more expected of a leader if no controller has read its loss yet.
        is_trusted = leader not in known.holders.unsure and leader not in known.holders.unreported
        having_deleted = log.deleted_by & known.holders.trusted if is_trusted else set[int]()
        was_held = bool(known.holders.since)
        is_enough = self.min_insync.may_be_enough(tp[0], leader, len(isr)) if leader >= 0 else False
        known.holders.state_written(
            self.now(), leader, isr, is_new_epoch=is_new_epoch, is_enough_for_leader=is_enough
        )
        if known.holders.unsure:
            self.events.count("eligible replicas of a leader that may count by a lower min.insync.replicas")
        if was_held and not had_forgotten and known.holders.has_forgotten:
            self.excused("not-trusted")
        if leader != known.leader:
            known.led_s = self.now()
        known.leader, known.epoch, known.changed_s = leader, epoch, self.now()
        if leader >= 0:
            known.last_leader, known.is_last_leader_lost = leader, False
        known.reported_lost.difference_update(isr)
        self._follow_deletion(tp, log, leader, isr, having_deleted)
        self._note_forgotten(tp, known, had_forgotten)
        acknowledged = log.acknowledged
        committed = max(max(acknowledged, default=-1) + 1, self.commits.most(tp, known.topic_id))
        if known.holders.has_forgotten and self._lacking(tp, known, joined, committed, self.now()):
            self.excused("records-lost-before")
            # The records of the next leader are held from now on.
            past = {at: at_s for at, (_, at_s) in acknowledged.items() if at_s < self.now()}
            held = (at for at, at_s in past.items() if known.holders.holds(at_s))
            committed = max(held, default=-1) + 1
        self._check_in_sync(tp, known, joined, committed, self.now())

    def eligible_written(self, tp: PartitionKey, eligible: Sequence[int]) -> None:
        """The store has these eligible replicas, in addition to a state written just before.

        The controller knows the stored ``min.insync.replicas``.
        """
        known = self.partitions.get(tp)
        if known is None or known.leader < 0:
            return
        if eligible and len(known.holders.isr) >= known.holders.min_isr:
            self.broken(
                "eligible",
                f"{tp} has {list(eligible)} eligible beside {known.holders.isr} in sync, and"
                f" {known.holders.min_isr} are enough for commits",
            )

    def _check_election(
        self, tp: PartitionKey, known: PartitionHistory, leader: int, unclean: UncleanElection | None
    ) -> None:
        holders = known.holders
        is_eligible = leader in holders.isr or leader in holders.eligible
        trusted = holders.trusted
        # Without a trusted replica the partition recovers as without an operator.
        if unclean is not None and not is_eligible and trusted and trusted.isdisjoint(unclean.able):
            self.excused("unclean")
            holders.forget()
        better = holders.better_than(leader)
        if better and leader in holders.unsure and self.excused("minimum-not-read"):
            holders.forget_before(self.now())
        elif better:
            self.broken("election", f"{leader} leads {tp}, and lacks records that {better} have")

    def _follow_deletion(
        self, tp: PartitionKey, log: LogHistory, leader: int, isr: Sequence[int], having_deleted: set[int]
    ) -> None:
        """A replica joins the ISR with the log start offset of its leader. ``having_deleted`` might have led
        instead.
        """
        if leader in log.deleted_by:
            self._check_has_deleted(tp, int(log.deleted_to), set(isr) - log.deleted_by, "gets in sync")
            log.deleted_by.update(isr)
        elif leader >= 0 and log.deleted_to:
            if having_deleted:
                self.broken(
                    "delete-records",
                    f"{leader} leads {tp}, and was not in sync when records were deleted up to"
                    f" {log.deleted_to}: {sorted(having_deleted)} were",
                )
            self.excused("deleted-without")
            log.deleted_to = 0
            log.deleted_by.clear()

    def elected_unclean(self, tp: PartitionKey, leader: int, epoch: int, able: Iterable[int]) -> None:
        """The controller elected a leader on request of an operator, from these candidates."""
        known = self.partitions.get(tp)
        if known is not None:
            known.unclean = UncleanElection(leader, epoch, frozenset(able))

    def replicas_lost(self, broker: int, *, everything: bool) -> None:
        """A machine lost its unsynced data, or everything."""
        self.log_state.disk_lost(f"broker-{broker}")
        for tp, known in self.partitions.items():
            if everything:
                self.logs[*tp, known.topic_id].deleted_by.discard(broker)
            if everything or not self.settings_of(tp[0]).flush_each:
                self.replica_lost(tp, broker)

    def replica_lost(self, tp: PartitionKey, broker: int) -> None:
        """A replica lost its unsynced records."""
        self.log_state.disk_lost(f"broker-{broker}")
        known = self.partitions.get(tp)
        if known is not None:
            had_forgotten = known.holders.has_forgotten
            known.holders.lost(broker)
            self.compaction.replica_lost(tp)
            known.lost_s[broker] = self.now()
            self._note_forgotten(tp, known, had_forgotten)

    def _note_forgotten(self, tp: PartitionKey, known: PartitionHistory, had_forgotten: bool) -> None:
        if known.holders.has_forgotten and not had_forgotten:
            self.events.count("partitions that may forget")
            self.events.add(f"no replica of {tp} holds all that was acknowledged: it may forget", "the world")

    def registered(self, broker: int, lost: LostReplicas, *, is_new: bool = True) -> None:
        """A broker has registered, and reported its possible losses.

        Unless ``is_new``, it updated its registration after its losses had been handled. The update may reach
        the store after the end of the process, and does not concern the start of the next one.
        """
        if not lost.first_epoch:  # Otherwise it repeats the report of that registration.
            self._registered_s[broker] = self.now()
        if is_new:
            self._started_s[broker] = self.now()
        self.deposed.registered(broker, self.now())
        started_s = self.started_s(broker)
        for tp, known in self.partitions.items():
            is_found = started_s is not None and known.lost_s.get(broker, started_s) < started_s
            if is_new and is_found and not lost.is_lost(*tp) and self.has_opened(broker, tp):
                # Its start has found no loss. A later start reads a directory that it cannot open.
                known.holders.unreported.pop(broker, None)

    def has_registered_since(self, broker: int, since_s: float) -> bool:
        """Whether a process of a broker has registered for the first time after that time."""
        return self._started_s.get(broker, since_s) > since_s

    def loss_read(self, broker: int, lost: LostReplicas) -> None:
        """The controller has read the possible losses of a broker in its registration."""
        registered_s = self._registered_s.get(broker, NEVER)
        for tp, known in self.partitions.items():
            if not lost.is_lost(*tp) or self._made_s[known.topic_id] > registered_s:
                continue  # A report does not apply to replicas created since.
            if known.lost_s.get(broker, registered_s) <= registered_s:
                known.holders.reported(broker)
            known.reported_lost.add(broker)
            if broker == known.last_leader and lost.is_missing(*tp):
                known.is_last_leader_lost = True

    def replica_cut(self, tp: PartitionKey, broker: int) -> None:
        """A replica that was reported as lost follows another, and has truncated its uncertain records."""
        self.compaction.replica_lost(tp)
        known = self.partitions.get(tp)
        if known is not None and broker in known.holders.since:
            had_forgotten = known.holders.has_forgotten
            known.holders.cut(broker)
            self.excused("not-trusted")
            self._note_forgotten(tp, known, had_forgotten)

    def may_lose(self, broker: int) -> bool:
        """Whether every partition has another replica with all records."""
        return all(
            broker not in known.holders.since or len(known.holders.since) > 1
            for known in self.partitions.values()
        )

    def may_forget(self, tp: PartitionKey) -> bool:
        """Whether a partition may have lost committed records, or was removed."""
        known = self.partitions.get(tp)
        return known is None or known.holders.has_forgotten

    def needs_election(self, tp: PartitionKey) -> bool:
        """Whether a partition has no leader, and no trusted replica could be elected."""
        known = self.partitions.get(tp)
        return known is not None and known.leader < 0 and known.holders.is_hopeless

    def controller_begins(self, epoch: int) -> None:
        """A broker is elected as the controller, in this epoch."""
        if epoch <= self._controller_epoch:
            self.broken("one-controller", f"epoch {epoch} comes after epoch {self._controller_epoch}")
        self._controller_epoch = epoch

    def controller_wrote(self, tp: PartitionKey, epoch: int) -> None:
        """The controller of this epoch wrote the state of a partition."""
        if epoch != self._controller_epoch:
            self.broken(
                "one-controller",
                f"the controller of epoch {epoch} wrote a state of {tp} in epoch {self._controller_epoch}",
            )

    def leads(self, tp: PartitionKey, topic_id: bytes, epoch: int, broker: int) -> None:
        """A broker assumes that it is the leader."""
        other = self._leaders.setdefault(((*tp, topic_id), epoch), broker)
        if other != broker:
            self.broken("one-leader", f"{tp} is led by {other} and by {broker} in epoch {epoch}")

    # -- producers

    def sending(self, message: Message, sent: Sent) -> None:
        """A record is sent, for the first time or again."""
        known = self.sent.setdefault(message, sent)
        known.first_s = known.first_s or self.now()
        known.times += 1
        known.unanswered += 1

    def answered(self, messages: Sequence[Message]) -> None:
        """An attempt got a response, with or without an error."""
        for message in messages:
            self.sent[message].unanswered -= 1

    def acknowledged(
        self,
        tp: PartitionKey,
        topic_id: bytes,
        base_offset: int,
        messages: Sequence[Message],
        *,
        sent_s: float,
        answered_s: float,
        broker: int,
    ) -> None:
        """A produce was acknowledged by ``broker``, and the response has arrived."""
        now = self.now()
        acks = self.sent[messages[0]].acks
        self.events.count(f"batches acknowledged with acks={acks}")
        for message in messages:
            self.sent[message].settled_s = now
        if base_offset < 0:
            self.excused("duplicate")
            return
        log = self.logs[*tp, topic_id]
        known = self.partitions.get(tp)
        if known is None or known.topic_id != topic_id:
            self.excused("recreated")
            return
        if acks == LEADER and known.leader >= 0 and known.leader != broker:
            self._check_session(tp, known, broker, answered_s)
        if acks == ALL:
            end = base_offset + len(messages)
            self._check_min_isr(tp, known, end, sent_s, broker)
            self._check_in_sync(tp, known, known.holders.isr, end, answered_s)
        for offset, message in enumerate(messages, base_offset):
            self._agree(tp, offset, message, log, acks == ALL)
            if acks == ALL:
                log.acknowledged[offset] = (message, answered_s)
            elif known.changed_s < sent_s and known.leader == broker:
                log.led[offset] = LedRecord(message, known.epoch, broker)

    def _check_session(
        self, tp: PartitionKey, known: PartitionHistory, broker: int, answered_s: float
    ) -> None:
        """A former leader has acknowledged a record with acks=1."""
        self.events.count("acks=1 of former leaders")
        started_s = self.started_s(broker)
        if started_s is None:
            return
        late_s = self.deposed.overdue_s(tp, broker, known.led_s, answered_s, started_s)
        if late_s > 0:
            self.broken(
                "session",
                f"{broker} acknowledges writes to {tp}, and should have stopped {late_s:.1f} s ago:"
                f" {known.leader} leads, and its own session has ended",
            )

    def committed(
        self, tp: PartitionKey, topic_id: bytes, epoch: int, broker: int, end: int, since_s: float
    ) -> None:
        """The high watermark of a leader has advanced to ``end`` since ``since_s``."""
        known = self.partitions.get(tp)
        if known is None or (known.topic_id, known.epoch, known.leader) != (topic_id, epoch, broker):
            return
        self._check_min_isr(tp, known, end, since_s, broker, "committed")
        self._check_in_sync(tp, known, known.holders.isr, end, self.now(), "committed")
        if self.settings_of(tp[0]).flush_each:
            self._check_synced(tp, known, end)

    def _check_synced(self, tp: PartitionKey, known: PartitionHistory, end: int) -> None:
        """With flush.messages=1 the ISR has the committed records on its disks."""
        for broker in known.holders.isr:
            if known.holders.since.get(broker, NEVER) > self.now() or self.started_s(broker) is None:
                continue
            synced = self.synced_end(tp, broker)
            if 0 <= synced < end:
                self.broken(
                    "committed",
                    f"{tp} is committed up to {end} with flush.messages=1, and {broker} of the ISR"
                    f" {known.holders.isr} has it on its disk up to {synced}",
                )
                return

    def _check_min_isr(
        self,
        tp: PartitionKey,
        known: PartitionHistory,
        end: int,
        sent_s: float,
        leader: int,
        promise: str = "min-isr",
    ) -> None:
        """Counts the replicas that have the records; those restarted since are trusted.

        A leader may learn late that a replica lost records.
        """
        told_s = sent_s if promise == "min-isr" else sent_s - FETCH_DELAY_S_MAX
        ends = self.replica_ends(tp)
        having = believed = removed = 0
        for broker in known.replicas:
            started_s = self.started_s(broker)
            if ends.get(broker, -1) >= end:
                having += 1
            elif (self.stopped_s(broker) if started_s is None else started_s) >= told_s:
                believed += 1
            elif started_s is not None and known.is_being_deleted and broker not in ends:
                removed += 1
        least = known.holders.min_isr
        if having >= least:
            return
        if known.changed_s >= sent_s:
            self.excused("changed-since")
        elif having + believed >= least:
            self.excused("restarted-since")
        elif having + believed + removed >= least:
            self.excused("being-deleted")
        elif not self.min_insync.explains(tp[0], leader, having + believed + removed, sent_s):
            self.broken(
                promise,
                f"{tp} offset {end - 1} was {_DONE[promise]} while {having} of {known.replicas} had it,"
                f" and {believed + removed} may have had it (log ends {dict(ends)}, min.insync.replicas"
                f" {least})",
            )

    def _check_in_sync(
        self,
        tp: PartitionKey,
        known: PartitionHistory,
        members: Iterable[int],
        end: int,
        answered_s: float,
        promise: str = "in-sync",
    ) -> None:
        """``members`` of the ISR have all records before ``end``, acknowledged at ``answered_s``."""
        for broker in self._lacking(tp, known, members, end, answered_s):
            self.broken(
                promise,
                f"{tp} offset {end - 1} was {_DONE[promise]}, and broker {broker} of the ISR"
                f" {known.holders.isr} does not have it (log ends {dict(self.replica_ends(tp))})",
            )
            return

    def _lacking(
        self, tp: PartitionKey, known: PartitionHistory, members: Iterable[int], end: int, answered_s: float
    ) -> list[int]:
        """Returns those of ``members`` that hold the records acknowledged at ``answered_s``, and end before
        ``end``.
        """
        ends = self.replica_ends(tp)
        return [
            broker
            for broker in members
            if known.holders.since.get(broker, NEVER) <= answered_s and ends.get(broker, end) < end
        ]

    def refused_sequence(self, tp: PartitionKey, topic_id: bytes, refusal: str, *, in_doubt: bool) -> None:
        """An idempotent producer is refused although no sequence is missing before its batch."""
        if self.may_forget(tp):
            self.excused("records-lost-before")
        elif in_doubt and self._may_be_gone(tp, topic_id):
            self.excused("deleted-in-doubt")
        else:
            self.broken("sequence", f"{refusal}, and all its records were acknowledged")

    def _may_be_gone(self, tp: PartitionKey, topic_id: bytes) -> bool:
        settings = self.settings_of(tp[0])
        is_retained = settings.retention_bytes >= 0 or settings.retention_ms >= 0 or settings.compacts
        return is_retained or self.logs[*tp, topic_id].delete_tried_to > 0

    def producer_id_given(self, producer: str, producer_id: int) -> None:
        """A producer requested an id, and received this one."""
        other = self._producer_ids.setdefault(producer_id, producer)
        if other != producer or producer_id < 0:
            self.broken("producer-id", f"{producer} receives id {producer_id}, which {other} has")

    # -- consumers

    def saw(
        self,
        tp: PartitionKey,
        topic_id: bytes,
        offset: int,
        message: Message,
        asked_s: float,
        answered_s: float,
        broker: int,
    ) -> None:
        """A consumer received a record, in a response that the broker sent at ``answered_s``."""
        log = self.logs[*tp, topic_id]
        sent = self.sent.get(message)
        if sent is None or sent.tp != tp or not sent.times:
            self.broken("no-invention", f"{tp} offset {offset} holds {message}, which was not sent there")
            return
        self._check_incarnation(tp, topic_id, offset, message, sent)
        is_deleted = offset < log.deleted_to and log.deleted_s < asked_s
        if is_deleted and not self._may_know_no_deletion(tp, broker):
            self.broken(
                "delete-records", f"{tp} offset {offset} is read, and was deleted up to {log.deleted_to}"
            )
        self._agree(tp, offset, message, log, is_committed=True)
        log.read.setdefault(offset, (message, answered_s))

    def _check_incarnation(
        self, tp: PartitionKey, topic_id: bytes, offset: int, message: Message, sent: Sent
    ) -> None:
        made_s = self._made_s.get(topic_id, 0.0)
        is_other = bool(sent.topic_id) and sent.topic_id != topic_id
        is_before = sent.settled_s is not None and not sent.unanswered and sent.settled_s < made_s
        if is_other or is_before:
            self.broken(
                "new-topic",
                f"{tp} offset {offset} holds {message} of a topic of that name that was deleted",
            )

    def _agree(
        self, tp: PartitionKey, offset: int, message: Message, log: LogHistory, is_committed: bool
    ) -> None:
        if not is_committed:
            return  # Another leader may assign the offset to another record.
        for what, known in (("acknowledged", log.acknowledged), ("read", log.read)):
            other, _ = known.get(offset, (message, 0.0))
            if other != message and not (self.may_forget(tp) and self.excused("records-lost-before")):
                self.broken(
                    "one-record", f"{tp} offset {offset} holds {message}, and {other} was {what} there"
                )

    def skipped(self, consumer: str, tp: PartitionKey, topic_id: bytes, position: int, found: int) -> None:
        """A consumer requested one offset, and received a later one."""
        if self.compaction.is_compacted(tp):
            self.compaction.skipped(consumer, tp, topic_id, position, found)
        elif not (self.may_forget(tp) and self.excused("records-lost-before")):
            self.broken("no-gap", f"{consumer} fetched offset {position} of {tp}, and received {found}")

    def end_told(self, consumer: str, tp: PartitionKey, topic_id: bytes, end: int, how: str) -> None:
        """A consumer received the end of the partition for readers."""
        key = (consumer, (*tp, topic_id))
        before = self._ends.get(key, -1)
        if end < before and not (self.may_forget(tp) and self.excused("records-lost-before")):
            self.broken(
                "high-watermark",
                f"the high watermark of {tp} for {consumer} was {before}, and is {end} ({how})",
            )
        self._ends[key] = max(before, end)

    def _may_know_no_deletion(self, tp: PartitionKey, broker: int) -> bool:
        """Whether a broker need not know of deleted records."""
        known = self.partitions.get(tp)
        if known is not None and known.leader != broker != ANY_BROKER:
            return self.excused("former-leader")
        return self.may_forget(tp) and self.excused("records-lost-before")

    def log_start_returned(
        self, tp: PartitionKey, topic_id: bytes, start: int, asked_s: float, broker: int = ANY_BROKER
    ) -> None:
        """A consumer that sent a request to ``broker`` at this time received the log start offset."""
        log = self.logs[*tp, topic_id]
        settings = self.settings_of(tp[0])
        is_moved = settings.retention_bytes >= 0 or settings.retention_ms >= 0
        is_deleted = start < log.deleted_to and log.deleted_s < asked_s
        if is_deleted and not self._may_know_no_deletion(tp, broker):
            self.broken("delete-records", f"{tp} starts at {start}, and was deleted up to {log.deleted_to}")
        is_started_late = start > log.delete_tried_to and not is_moved
        if is_started_late and not (self.may_forget(tp) and self.excused("records-lost-before")):
            self.broken(
                "log-start",
                f"{tp} starts at {start}, and no request deleted records from {log.delete_tried_to} on",
            )
        if settings.retention_ms >= 0 and settings.retention_bytes < 0:
            self._check_retained(tp, topic_id, start, settings.retention_ms)

    def _check_retained(self, tp: PartitionKey, topic_id: bytes, start: int, retention_ms: int) -> None:
        """Known records that were removed were older than retention.ms."""
        log = self.logs[*tp, topic_id]
        first = max(log.retention_checked_to, log.delete_tried_to)
        if start <= first:
            return
        log.retention_checked_to = start
        for offset in range(int(first), start):
            known = log.acknowledged.get(offset) or log.read.get(offset)
            if known is None:
                continue
            message = known[0]
            age_ms = (self.now() - self.sent[message].first_s) * 1000
            if age_ms >= retention_ms or self.compaction.was_taken(tp, topic_id, offset, message):
                continue
            if age_ms + self.clock_ahead_ms >= retention_ms and self.excused("clock-skew"):
                continue
            if not (self.may_forget(tp) and self.excused("records-lost-before")):
                self.broken(
                    "retention",
                    f"{tp} starts at {start}; {message} at {offset} is {age_ms:.0f} ms old at most, and"
                    f" retention.ms is {retention_ms}",
                )
                return

    def out_of_range(
        self, consumer: str, tp: PartitionKey, topic_id: bytes, position: int, start: int, end: int
    ) -> None:
        """A position of a consumer is out of range; it then received the start and the end."""
        if position < start:
            self.events.count("out of range below the start")
        elif position > end and not (self.may_forget(tp) and self.excused("records-lost-before")):
            self.broken("read", f"{consumer} has read {tp} up to {position}, which ends at {end} now")

    # -- administrators

    def delete_tried(self, tp: PartitionKey, topic_id: bytes, offset: int) -> None:
        """DeleteRecords is sent; -1 for the high watermark."""
        log = self.logs[*tp, topic_id]
        log.delete_tried_to = max(log.delete_tried_to, float("inf") if offset < 0 else offset)

    def delete_answered(self, tp: PartitionKey, topic_id: bytes, offset: int, broker: int) -> None:
        """``broker`` acknowledged DeleteRecords: no record below ``offset`` exists."""
        log = self.logs[*tp, topic_id]
        self.events.count("record deletions")
        known = self.partitions.get(tp)
        if known is not None and known.leader != broker:
            self.excused("former-leader")
            return
        self._check_durable_start(tp, offset, broker)
        if known is not None:
            others = set(known.holders.isr) - {broker} - set(known.holders.unreported)
            self._check_has_deleted(tp, offset, others, "is in sync")
        if offset > log.deleted_to:
            log.deleted_to, log.deleted_s = offset, self.now()
            # The eligible replicas were in sync when the broker responded: it waits for min.insync.replicas.
            holders = known.holders if known is not None else None
            log.deleted_by = set() if holders is None else {broker, *holders.isr, *holders.eligible}

    def _check_has_deleted(self, tp: PartitionKey, offset: int, brokers: Iterable[int], what: str) -> None:
        """No electable replica may restore records deleted below ``offset``."""
        for broker in sorted(brokers):
            start = self.live_start(tp, broker)
            if 0 <= start < offset and not (self.may_forget(tp) and self.excused("records-lost-before")):
                self.broken(
                    "delete-records",
                    f"{broker} {what} for {tp}, whose records below {offset} were deleted, and its log"
                    f" starts at {start}",
                )

    def _check_durable_start(self, tp: PartitionKey, offset: int, broker: int) -> None:
        if self.started_s(broker) is None:
            return  # Its process has ended since its response, and the machine may have another disk.
        start = self.durable_start(tp, broker)
        if 0 <= start < offset and not (self.may_forget(tp) and self.excused("records-lost-before")):
            self.broken(
                "reported-log-start",
                f"{broker} has deleted the records of {tp} below {offset}, and a power failure would leave"
                f" its log start offset at {start}",
            )

    # -- groups

    def commits_of(self, group: str, tp: PartitionKey) -> Commits:
        """Returns the history of a group's offset."""
        return self._commits.setdefault((group, tp), Commits())

    def commit_tried(self, group: str, tp: PartitionKey, offset: int) -> None:
        """A commit is in flight: from now on it may be found."""
        self.commits_of(group, tp).tried[offset] += 1

    def commit_refused(self, group: str, tp: PartitionKey, offset: int) -> None:
        """A commit got an error response."""
        self.commits_of(group, tp).tried[offset] -= 1

    def commit_acknowledged(
        self, group: str, tp: PartitionKey, offset: int, *, sent_s: float = 0.0, generation: int = -1
    ) -> None:
        """A commit was acknowledged."""
        self.events.count("commits acknowledged")
        commits = self.commits_of(group, tp)
        commits.tried[offset] -= 1
        commits.settled = max(commits.settled, offset)
        what = f"committed {offset} for {tp}"
        self.accepted_in_generation(group, what, sent_s=sent_s, generation=generation)

    def accepted_in_generation(self, group: str, what: str, *, sent_s: float, generation: int) -> None:
        """A request of a member in a generation was accepted."""
        newest, assigned_s = self._assignments.get(group, (-1, 0.0))
        is_old = 0 <= generation < newest and assigned_s < sent_s
        # A removed group counts its generations from 1 again.
        if is_old and not (self.may_forget(GROUPS_LOG) and self.excused("records-lost-before")):
            self.broken(
                "generation",
                f"a member of {group} {what} in generation {generation}, and was not rejected; the"
                f" members of generation {newest} had their assignment before the request",
            )

    def joined(self, group: str, generation: int, leader: str) -> int:
        """A member joined a generation: returns how many were before.

        An emptied group counts from 1 again. So does a coordinator that could not write the last generations:
        no member had an assignment in them.
        """
        key = (generation, leader)
        known = self._generations.setdefault(group, {})
        newest, _ = self._assignments.get(group, (-1, 0.0))
        order = known.get(key, -1)
        if order < 0 or (order < newest and (group, order) not in self._owners):
            known[key] = order = max(known.values(), default=-1) + 1
            self.events.count("group generations")
        return order

    def assigned(self, group: str, order: int, member: str, partitions: Iterable[int]) -> None:
        """A member received its assignment, in the generation with this number of :meth:`joined`."""
        owners = self._owners.setdefault((group, order), {})
        for partition in partitions:
            owner = owners.setdefault(partition, member)
            if owner != member and not (self.may_forget(GROUPS_LOG) and self.excused("records-lost-before")):
                self.broken(
                    "owner",
                    f"{member} and {owner} of {group} own partition {partition} in generation {order}",
                )
        newest, _ = self._assignments.get(group, (-1, 0.0))
        if order > newest:
            self._assignments[group] = (order, self.now())

    def committed_found(
        self, group: str, tp: PartitionKey, offset: int, log_tp: PartitionKey, broker: int, least: int
    ) -> bool:
        """A group requested its offset from ``broker``; it was ``least`` or more at the time of the request.

        ``log_tp`` is the partition that stores offsets. False: the broker is a former coordinator.
        """
        known = self.partitions.get(log_tp)
        if known is None or known.leader != broker:
            return not self.excused("former-coordinator")
        commits = self.commits_of(group, tp)
        is_known = offset >= least and (offset <= commits.settled or commits.tried[offset] > 0)
        is_doubtful = commits.has_no_members and commits.tried[offset] > 0
        if is_known:
            commits.settled = max(commits.settled, offset)
        elif is_doubtful:
            self.excused("in-doubt")
        elif not (self.may_forget(log_tp) and self.excused("records-lost-before")):
            tried = sorted(offset for offset, count in commits.tried.items() if count)
            self.broken(
                "positions",
                f"{group} had position {least} in {tp} (in doubt: {tried}), and finds {offset}",
            )
        return True

    # -- the end

    def check_log(
        self, tp: PartitionKey, topic_id: bytes, start: int, end: int, log: Sequence[tuple[int, Message]]
    ) -> None:
        """``log`` is the final content of a partition, from ``start`` to ``end``."""
        self.check_lost(tp, topic_id, start, dict(log))
        self.compaction.check_skips(tp, topic_id, start, dict(log))
        self.log_start_returned(tp, topic_id, start, self.now())
        times = Counter(message for _, message in log)
        for message, count in times.items():
            sent = self.sent.get(message)
            if sent is None or sent.tp != tp or count > (1 if sent.session >= 0 else sent.times):
                self.broken("no-invention", f"{tp} holds {message} {count} times: {sent}")
                return
            if sent.acks == NONE and count > 1:
                self.broken("acks-0", f"{tp} holds {message} {count} times")
        for offset, message in log:
            self._check_incarnation(tp, topic_id, offset, message, self.sent[message])
        self._check_order(tp, topic_id, log)

    def check_lost(self, tp: PartitionKey, topic_id: bytes, start: int, log: Mapping[int, Message]) -> None:
        """``log`` has all records acknowledged or read from ``start`` on."""
        history = self.logs[*tp, topic_id]
        known = self.partitions[tp]

        def is_gone(offset: int, message: Message) -> bool:
            return offset >= start and log.get(offset) != message

        for promise, records in (("acks-all", history.acknowledged), ("read", history.read)):
            gone = {offset: message for offset, (message, _) in records.items() if is_gone(offset, message)}
            compacted = self.compaction.explains(tp, topic_id, log, gone)
            for offset, message in gone.items():
                if offset in compacted:
                    continue
                _, at_s = records[offset]
                if known.holders.holds(at_s):
                    self.broken(promise, self._missing(tp, offset, message, log))
                    return
                self.excused("lost")
        gone = {offset: led.message for offset, led in history.led.items()}
        gone = {offset: message for offset, message in gone.items() if is_gone(offset, message)}
        compacted = self.compaction.explains(tp, topic_id, log, gone)
        for offset, led in history.led.items():
            if offset not in gone or offset in compacted:
                continue
            if known.epoch == led.epoch and led.leader not in known.lost_s:
                self.broken("acks-1", self._missing(tp, offset, led.message, log))
                return
            self.excused("new-leader")

    def _missing(self, tp: PartitionKey, offset: int, message: Message, log: Mapping[int, Message]) -> str:
        return (
            f"{message} was at {tp} offset {offset}, which holds {log.get(offset)} now"
            f" ({len(log)} records up to {max(log, default=-1)}; it is held by"
            f" {self.partitions[tp].holders.since})"
        )

    def _check_order(self, tp: PartitionKey, topic_id: bytes, log: Sequence[tuple[int, Message]]) -> None:
        """Idempotent producers: the first record in the log is arbitrary, since the log start moves."""
        last: dict[tuple[str, int], tuple[int, Message]] = {}
        for offset, message in log:
            sent = self.sent[message]
            if sent.session < 0:
                continue
            key = (message.producer, sent.session)
            before, other = last.get(key, (sent.sequence - 1, None))
            if sent.sequence != before + 1 and not self.compaction.explains_gap(
                tp, topic_id, log, offset, (message.producer, sent.session), (before + 1, sent.sequence)
            ):
                if not (self.may_forget(tp) and self.excused("records-lost-before")):
                    self.broken(
                        "order",
                        f"{tp} offset {offset} holds {message} (sequence {sent.sequence}) after {other}"
                        f" (sequence {before})",
                    )
                return
            last[key] = (sent.sequence, message)


ALWAYS_RUNNING = float("inf")


@dataclass(slots=True)
class Commits:
    """A group's offset in one partition."""

    settled: int = -1
    """The largest that was acknowledged or found."""
    tried: Counter[int] = field(default_factory=Counter)
    """Commits that have no answer, by offset."""
    has_no_members: bool = False
