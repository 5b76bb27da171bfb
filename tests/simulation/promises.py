"""What a cluster promises its clients, and the checkers of these promises.

:data:`PROMISES` and :data:`EXCUSES` are the tables of ``docs/decisions/promises.md``. A checker names the
promise that it found broken. Where a checker lets something pass, the excuse is named as well, and counted.

Clients report what they ask and what they are answered; the world reports what the store holds and what
machines lose. Times are simulated seconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from acknowledged_holders import NEVER, Holders
from asked_deletions import AskedDeletions
from asked_moves import AskedMoves
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
from restart_promise import RestartPromise
from simulated_loop import wall_ms_at

from tidemill.coordination.lost_replicas import LostReplicas

PROMISES = {
    "acks-all": "a record acknowledged with acks=all can be read for as long as a replica holds it that was "
    "in sync or eligible then, and has lost nothing since",
    "in-sync": "a replica of the in-sync set has every record that was acknowledged with acks=all, unless it "
    "has lost something since",
    "read": "a record that a consumer has read is kept like one that was acknowledged with acks=all",
    "acks-1": "a record acknowledged with acks=1 can be read for as long as its leader stays the leader and "
    "has lost nothing",
    "acks-0": "a record sent with acks=0 is there at most once",
    "min-isr": "acks=all is acknowledged only when min.insync.replicas replicas, or all there are, have "
    "the record",
    "flush": "with flush.messages=1 no power cut loses what was acknowledged, on any number of machines",
    "restart": "a killed process loses nothing of its logs, and a power cut takes the end of a log, and no "
    "record before one that stays; a clean stop leaves everything on the disk",
    "recovery-point": "what lies below the recovery point of a log is on the disk",
    "checkpoints": "before a log goes on, no checkpoint calls more of it synced, deleted or clean than is",
    "no-hole": "the batches of a log follow each other without a gap or an overlap, but for what compaction "
    "took; the log ends with the last",
    "cut": "once a cut is on the disk, no power cut brings back what lay behind it",
    "told-start": "a start of a log holds after a power cut before a follower tells its leader, or a leader "
    "a client that asked for it",
    "loss-told": "a start that finds less than there was says so, and notes it before it cuts",
    "one-batch": "in a leader epoch an offset is written once: whichever replicas have that batch have the "
    "same",
    "epochs": "a replica knows of each of its records in which leader epoch it was written; where all are "
    "deleted, of the last one, unless a disk loses what was not synced",
    "producers": "a replica knows of each producer the last of its batches that it has, and no other",
    "eligible": "while a partition is led by enough replicas in sync for commits, none is eligible beside "
    "them",
    "committed": "a leader commits a record once every replica of the in-sync set and min.insync.replicas "
    "replicas have it, with flush.messages=1 on their disks; no replica takes more for committed",
    "counted": "a leader counts for a follower what its last fetch has told, in the same leader epoch, of "
    "its latest registration, and since it left the in-sync set; it commits nothing alone while it asks for "
    "others in sync, or one had all that there was a moment ago",
    "follows": "a follower takes what its leader has sent for the end of its log, once the disk has what it "
    "cut; then both have the same; it cuts all that differs, and nothing else",
    "told": "what a follower tells its leader holds after a power cut: where its log starts, and with "
    "flush.messages=1 where it ends; nothing counts that the machine may have lost",
    "stops-leading": "nobody waits for commits at a broker that leads a partition no more; a broker leads "
    "nothing without a session, nor while it hears neither of the store nor of the replicas in sync",
    "one-record": "an offset never holds two records, for readers and writers that were answered",
    "high-watermark": "the end that a consumer is told does not go back for it",
    "no-gap": "a consumer misses nothing between the log start and the end",
    "no-invention": "a log holds only records that were sent to it, and each at most as often as it was sent",
    "order": "the records of an idempotent producer are there once, in its order, without a gap",
    "sequence": "an idempotent producer whose records were all acknowledged is not refused",
    "log-start": "only DeleteRecords and retention move the start of a log",
    "delete-records": "records below an offset that DeleteRecords has answered are not read any more, "
    "for as long as a replica is there that was in sync then, and has reported no loss since; and the log "
    "of no replica that is in sync then, or gets in sync with one of those, starts before that",
    "retention": "retention keeps the newest retention.bytes, and records that are younger than "
    "retention.ms; what it removes leaves the disk",
    "compaction": "compaction takes a record only when a newer one of its key is committed and on the disk, "
    "or as a tombstone after delete.retention.ms; offsets and order stay, and nothing that is gone comes "
    "back",
    "new-topic": "a topic made anew holds no record of the topic of that name before, and no broker forgets "
    "a directory of one that is deleted",
    "deletion": "a deletion by id, or by a mark in the store, deletes the topic that was there, and none "
    "that is made under its name",
    "one-leader": "a leader epoch has one leader",
    "session": "a leader whose session has ended, and that no replica follows any more, takes writes no "
    "longer than another session lives",
    "election": "no replica of which the controller has read that it lacks something is elected while one "
    "holds everything that has reported no loss since it was in sync",
    "decision": "each state of a partition that a controller writes follows from the one before and from "
    "what it has read: who leads, who is in sync, eligible or lost, and which leader epoch it is",
    "image": "a controller knows of topics what is in the store; it and the leaders count by the settings "
    "that they have read; an index of topics is what one made anew of them would be",
    "losses": "a broker that starts with another disk reports the replicas that it had on the one before",
    "one-controller": "a controller epoch has one controller, which writes no state once there is a later "
    "one",
    "commands": "a broker carries out commands of the newest controller only, for its own registration and "
    "over the newest connection, and has done what it confirms; a controller repeats a command until it is "
    "answered, and then no more",
    "leader-epoch": "a follower is told offsets by a leader that is in its leader epoch, and by no other",
    "redundancy": "a move drops a replica only when all replicas that stay are in sync; one that is stopped "
    "or replaced drops those that it has added only where as many with every committed record stay as "
    "commits take, or as many as there were",
    "reassignment": "a partition is moved to the replicas that somebody asked for, or back where somebody "
    "has stopped the move; what was granted last is so at rest",
    "positions": "a position that a group was acknowledged, or has found, is found again, or a later one",
    "generation": "a member of an old generation is refused, and commits nothing, once the next one has its "
    "assignment",
    "owner": "in a generation of a group a partition has one owner",
    "coordinator": "a coordinator knows, shows and answers what the committed part of its log says, while "
    "its broker leads that; members that are not heard of, or do not join in time, are out of their group",
    "producer-id": "a producer id is given to one producer",
    "equal": "at rest all replicas of a partition are equal, and no other broker has one",
    "rest": "the cluster comes to rest once nothing breaks any more: every replica in sync, every move done, "
    "every partition owned by a living member of each group",
    "progress": "producers are acknowledged, and what administrators ask for is done, unless faults prevent "
    "it",
    "no-error": "the program reports no fault of its own",
}
"""What the cluster promises, by name."""

TOLD_LATE_S = 5.0
"""A fetch is under way for no longer than this, which tells a leader what a replica has."""
_DONE = {"in-sync": "acknowledged", "min-isr": "acknowledged", "committed": "committed"}

EXCUSES = {
    "lost": "acks-all, read: every replica that held the record lost its disk, or its power before a sync",
    "not-trusted": "acks-all, read, flush: a replica reports a loss after a power cut or disk error, but has "
    "everything: it cuts what it is not sure of once another leads, and a partition may recover without it",
    "unclean": "election, acks-all, read: an operator had a leader elected while no replica that is known to "
    "hold what was committed could lead",
    "forgotten": "one-record, in-sync, read, high-watermark, no-gap, order, sequence, positions, generation, "
    "owner, log-start, delete-records, told-start, retention, rest, equal (where compacted): the partition "
    "has lost committed records in this way",
    "new-leader": "acks-1: the leader changed after the record was sent",
    "recreated": "acks-all, acks-1, read: the topic was deleted",
    "being-deleted": "min-isr: a deletion of the topic removed a replica before the answer came; losses, "
    "decision: nobody leads a topic that is to be deleted",
    "changed-since": "min-isr, committed: the state of the partition has changed since the request was sent",
    "restarted-since": "min-isr, committed: the process of a replica has begun or ended since the request "
    "was sent, or its fetch: it may have had the record",
    "in-transition": "decision: a controller has written a state whose process is gone, which has given up "
    "the wait for an answer, or which has sent more writes than it knows the outcome of",
    "duplicate": "acks-all, acks-1, in-sync, min-isr: a batch is a duplicate whose offset is not known any "
    "more",
    "former-leader": "delete-records: a deposed leader that has not heard of it shows what it knew, and "
    "answers what no other replica is told",
    "former-coordinator": "positions: a deposed coordinator that has not heard of it shows what it knew",
    "deleted-without": "delete-records: a replica leads that was not in sync when the records were deleted: "
    "those that were are gone, or have reported a loss",
    "deleted-in-doubt": "sequence: a batch without an answer was stored, and deleted or compacted before "
    "a retry",
    "tombstone-unwritten": "coordinator: the tombstone of a position of a deleted topic could not be "
    "written, and is not written again",
    "static-id": "coordinator: a stable group has another member id for a static member than its log: the "
    "member has come back, and the write of the new id is under way or has failed",
    "in-doubt": "positions: an unanswered commit without a group generation may take effect later",
    "compacted": "acks-all, read, acks-1, restart, no-gap, order, retention, equal: a newer record of the "
    "key is there, as `compaction` promises; no-hole, one-batch, epochs, producers, counted, follows: "
    "compaction has taken the batches that would tell",
    "tombstone-over": "acks-all, read, acks-1, restart, no-gap, order, retention, equal: a tombstone of the "
    "key is older than delete.retention.ms, as `compaction` promises",
    "tombstone-missed": "compaction, equal: a replica that had not fetched a tombstone when it was removed "
    "elsewhere, or lost it, keeps the records for which it stood",
    "clock-turned": "compaction, retention, and with `tombstone-over`: tombstones and records go early, by "
    "no more than wall clocks were wrong",
    "not-learnt": "min-isr, election, acks-all, read: min.insync.replicas was raised a moment ago, and the "
    "leader has not read it yet",
    "cut-before": "follows, restart: a process had cut the log, and was killed before the disk had that; "
    "epochs: an epoch begins where the log ended when it was opened or cut, behind the last batch that "
    "compaction has left",
    "late-fetch": "counted: a fetch of a process that is gone comes to a leader that knows of no later "
    "registration",
    "full-disk": "checkpoints, commands: a full disk has refused a checkpoint, which is written once there "
    "is room",
    "slow-network": "progress: on a slow network fewer faults take a run to its cap",
    "needs-operator": "rest, progress: no replica is known to hold what was committed; an operator decides",
}
"""What a checker lets pass, and for which promises."""

Place = tuple[str, int]
"""Topic and partition."""
GROUPS_LOG: Place = ("__consumer_offsets", 0)
"""What all groups are written to."""
LogKey = tuple[str, int, bytes]
"""Topic, partition and topic id: a topic made anew has other logs."""
ALL, LEADER, NONE = -1, 1, 0
ANY_BROKER = -1


class Message(NamedTuple):
    """What a record says of itself: its producer, and which of the producer's records it is."""

    producer: str
    number: int

    def __repr__(self) -> str:
        return f"{self.producer}:{self.number}"

    def encode(self) -> bytes:
        """As a record's value: of different lengths."""
        return f"{self.producer}:{self.number}:{'x' * (self.number * 37 % 90)}".encode()

    @staticmethod
    def decode(value: bytes) -> Message:
        """From a record's value."""
        producer, number, _ = value.decode().split(":")
        return Message(producer, int(number))

    def record(self, is_keyed: bool) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]:
        """Key, value and headers of its record; one with a key may be a tombstone."""
        if not is_keyed:
            return None, self.encode(), []
        if is_tombstone(self):
            return key_of(self), None, [(HEADER, self.encode())]
        return key_of(self), self.encode(), []

    @staticmethod
    def of(record: Any) -> Message:
        """From a record that was read."""
        value = record.value if record.value is not None else dict(record.headers).get(HEADER)
        return Message.decode(value or b"")


@dataclass(slots=True, kw_only=True)
class Sent:
    """A record on its way: what its producer knows of it."""

    place: Place
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
    """What clients know of one log."""

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
    """What the controller decided as an operator asked."""

    leader: int
    epoch: int
    able: frozenset[int]
    """The replicas that could lead, as far as the controller knew."""


@dataclass(slots=True)
class PartitionHistory:
    """What the store knows of a partition."""

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
    """That an operator asked for, and that may be written next."""

    @property
    def waits_for_operator(self) -> bool:
        """Whether nobody leads, and nobody will: once all replicas have reported a loss one is elected."""
        return (
            self.leader < 0
            and self.is_last_leader_lost
            and self.holders.is_hopeless
            and not self.reported_lost.issuperset(self.replicas)
        )


class TopicSettings(NamedTuple):
    """The settings of a topic that promises depend on."""

    min_isr: int = 1
    flush_each: bool = False
    retention_bytes: int = -1
    retention_ms: int = -1
    compacts: bool = False
    """Its records have keys."""
    delete_retention_ms: int = 86_400_000


class Promises:
    """Checks all promises while a cluster works, and at the end."""

    def __init__(self, events: EventLog, now: Callable[[], float]) -> None:
        self.events = events
        self.now = now
        self.settings: dict[str, TopicSettings] = {}
        self.sent: dict[Message, Sent] = {}
        self.logs: defaultdict[LogKey, LogHistory] = defaultdict(LogHistory)
        self.partitions: dict[Place, PartitionHistory] = {}
        self.replica_ends: Callable[[Place], Mapping[int, int]] = lambda place: {}
        """The log ends of a partition's running replicas, by broker."""
        self.durable_start: Callable[[Place, int], int] = lambda place, broker: -1
        self.live_start: Callable[[Place, int], int] = lambda place, broker: -1
        """Where the log of a broker that runs starts now; -1 where it has none."""
        """Where a power cut would leave the start of the log of a broker; -1 where it has none."""
        self.synced_end: Callable[[Place, int], int] = lambda place, broker: -1
        """Up to where a broker has a partition on its disk; -1 when it has nothing there."""
        self.started_s: Callable[[int], float | None] = lambda broker: None
        """Since when the process of a broker runs."""
        self.has_opened: Callable[[int, Place], bool] = lambda broker, place: True
        """Whether the process of a broker has opened the directories in which a log may lie."""
        self.stopped_s: Callable[[int], float] = lambda broker: ALWAYS_RUNNING
        self._ends: dict[tuple[str, LogKey], int] = {}
        self._leaders: dict[tuple[LogKey, int], int] = {}
        self._made_s: dict[bytes, float] = {}
        self._commits: dict[tuple[str, Place], Commits] = {}
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
        self.deletions = AskedDeletions()
        self.moves = AskedMoves(self.broken)

    def broken(self, promise: str, text: str) -> None:
        """Ends the run."""
        if promise not in PROMISES:
            raise KeyError(promise)
        self.events.violate(f"{promise}: {text}")

    def excused(self, excuse: str) -> bool:
        """Counts an excuse; True."""
        if excuse not in EXCUSES:
            raise KeyError(excuse)
        self.events.count(f"excuse {excuse}")
        return True

    # -- wall clocks

    def clock_turned(self, skew_ms: int) -> None:
        """A machine's wall clock shows so much more, or less, than the time."""
        self.clock_ahead_ms = max(self.clock_ahead_ms, skew_ms)
        self.clock_behind_ms = max(self.clock_behind_ms, -skew_ms)

    def is_tombstone_over(self, written_ms: int, retention_ms: int) -> bool:
        """Whether a tombstone of that time may be gone after ``retention_ms`` by some clock.

        A cleaning notes by its clock when the tombstone may go, and another one removes it by its own: a
        clock that was behind for the first, and is ahead for the other, shows the sum of both too much.
        """
        return self.is_old_enough(wall_ms_at(self.now()) - written_ms, retention_ms)

    def is_old_enough(self, age_ms: float, retention_ms: int) -> bool:
        """As :meth:`is_tombstone_over`, of a tombstone of that age."""
        if age_ms >= retention_ms:
            return True
        wrong_ms = self.clock_ahead_ms + self.clock_behind_ms
        return age_ms + wrong_ms >= retention_ms and self.excused("clock-turned")

    # -- what the store holds, and what machines lose

    def settings_of(self, topic: str) -> TopicSettings:
        """The settings of a topic."""
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
            place = (topic, index)
            known = self.partitions.get(place)
            if known is None or known.topic_id != topic_id:
                known = self.partitions[place] = PartitionHistory(topic_id, Holders(1))
            self._assigned(place, known, tuple(brokers), tuple(adding.get(index, ())))
            if not known.is_being_deleted:
                self.moves.written(place, topic_id, brokers, adding.get(index, ()), removing.get(index, ()))
            known.removing = tuple(removing.get(index, ()))
            known.holders.min_isr = self._min_isr_of(place, known)

    def _min_isr_of(self, place: Place, known: PartitionHistory) -> int:
        """How many replicas in sync a commit takes. Replicas that a move brings in do not count."""
        return min(self.settings_of(place[0]).min_isr, len(known.replicas) - len(known.adding))

    def min_isr_written(self, topic: str, min_isr: int) -> None:
        """The store has another ``min.insync.replicas`` for a topic, or its like from elsewhere."""
        if self.settings_of(topic).min_isr == min_isr:
            return
        self.settings[topic] = self.settings_of(topic)._replace(min_isr=min_isr)
        for place, known in self.partitions.items():
            if place[0] == topic:
                had_forgotten = known.holders.has_forgotten
                if known.holders.eligible and known.leader >= 0:
                    self.events.count("eligible replicas dropped by another min.insync.replicas")
                is_led = known.leader >= 0
                has_ended = is_led and (
                    self.started_s(known.leader) is None
                    or self.deposed.in_touch_s(known.leader) == NO_SESSION
                )
                least = self._min_isr_of(place, known)
                known.holders.min_isr_changed(least, is_led=is_led, has_ended=has_ended)
                self._note_forgotten(place, known, had_forgotten)

    def _assigned(
        self, place: Place, known: PartitionHistory, replicas: tuple[int, ...], adding: tuple[int, ...]
    ) -> None:
        if not known.is_being_deleted:
            self._check_stopped_move(place, known, replicas, adding)
        dropped = set(known.replicas) - set(replicas) - set(known.adding)
        if dropped and not known.is_being_deleted:
            late = set(replicas) - set(adding) - set(known.holders.isr)
            if late:
                self.broken(
                    "redundancy",
                    f"{place} drops {sorted(dropped)} of {known.replicas} while {sorted(late)} are not in the"
                    f" in-sync set {known.holders.isr}",
                )
        known.replicas, known.adding = replicas, adding
        known.holders.keep(replicas)

    def _check_stopped_move(
        self, place: Place, known: PartitionHistory, replicas: tuple[int, ...], adding: tuple[int, ...]
    ) -> None:
        if not set(known.adding) - set(replicas):
            return
        self.events.count("moves stopped or replaced")
        whole = {*known.holders.isr, *known.holders.eligible} & known.holders.trusted
        kept = whole & set(replicas)
        least = min(len(whole), self.settings_of(place[0]).min_isr, len(replicas) - len(adding))
        if len(kept) < least:
            self.broken(
                "redundancy",
                f"{place} stops a move, and of {sorted(whole)} that have every committed record it keeps"
                f" {sorted(kept)}, fewer than {least}",
            )

    def deletion_began(self, topic: str) -> None:
        """The store has that the topic is to be deleted: its replicas go, one after the other."""
        self._check_deletion(topic)
        for place, known in self.partitions.items():
            known.is_being_deleted = known.is_being_deleted or place[0] == topic

    def topic_removed(self, topic: str) -> None:
        """The store has the topic no more."""
        self._check_deletion(topic)
        for place in [place for place in self.partitions if place[0] == topic]:
            del self.partitions[place]
        self.min_insync.topic_removed(topic)

    def topic_id_of(self, topic: str) -> bytes:
        """The id of the topic that is in the store; empty when there is none."""
        known = self.partitions.get((topic, 0))
        return known.topic_id if known is not None else b""

    def _check_deletion(self, topic: str) -> None:
        topic_id = self.topic_id_of(topic)
        if topic_id and not self.deletions.is_asked(topic, topic_id):
            self.broken("deletion", f"{topic} is deleted with id {topic_id.hex()}, which nobody asked for")

    def state_written(self, place: Place, leader: int, epoch: int, isr: Sequence[int]) -> None:
        """The store has another state of a partition."""
        known = self.partitions.get(place)
        if known is None:
            return
        had_forgotten = known.holders.has_forgotten
        joined = [broker for broker in isr if broker not in known.holders.isr]
        is_new_epoch = epoch != known.epoch
        unclean, known.unclean = known.unclean, None
        if is_new_epoch and leader >= 0:
            is_asked_for = unclean is not None and (unclean.leader, unclean.epoch) == (leader, epoch)
            self._check_election(place, known, leader, unclean if is_asked_for else None)
        log = self.logs[*place, known.topic_id]
        # Nor is more expected of a leader of which no controller has read yet that it has lost something.
        is_trusted = leader not in known.holders.unsure and leader not in known.holders.unreported
        having_deleted = log.deleted_by & known.holders.trusted if is_trusted else set[int]()
        was_held = bool(known.holders.since)
        is_enough = self.min_insync.may_be_enough(place[0], leader, len(isr)) if leader >= 0 else False
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
        self._follow_deletion(place, log, leader, isr, having_deleted)
        self._note_forgotten(place, known, had_forgotten)
        acknowledged = log.acknowledged
        committed = max(max(acknowledged, default=-1) + 1, self.commits.most(place, known.topic_id))
        if known.holders.has_forgotten and self._lacking(place, known, joined, committed, self.now()):
            self.excused("forgotten")
            # What the next leader has is held from now on.
            past = {at: at_s for at, (_, at_s) in acknowledged.items() if at_s < self.now()}
            held = (at for at, at_s in past.items() if known.holders.holds(at_s))
            committed = max(held, default=-1) + 1
        self._check_in_sync(place, known, joined, committed, self.now())

    def eligible_written(self, place: Place, eligible: Sequence[int]) -> None:
        """The store has these eligible replicas, beside a state that was written a moment ago.

        The controller knows what the store has of ``min.insync.replicas``.
        """
        known = self.partitions.get(place)
        if known is None or known.leader < 0:
            return
        if eligible and len(known.holders.isr) >= known.holders.min_isr:
            self.broken(
                "eligible",
                f"{place} has {list(eligible)} eligible beside {known.holders.isr} in sync, and"
                f" {known.holders.min_isr} are enough for commits",
            )

    def _check_election(
        self, place: Place, known: PartitionHistory, leader: int, unclean: UncleanElection | None
    ) -> None:
        holders = known.holders
        is_eligible = leader in holders.isr or leader in holders.eligible
        trusted = holders.trusted
        # Without a trusted replica the partition recovers as it does without an operator.
        if unclean is not None and not is_eligible and trusted and trusted.isdisjoint(unclean.able):
            self.excused("unclean")
            holders.forget()
        better = holders.better_than(leader)
        if better and leader in holders.unsure and self.excused("not-learnt"):
            holders.forget_before(self.now())
        elif better:
            self.broken("election", f"{leader} leads {place}, and lacks what {better} hold")

    def _follow_deletion(
        self, place: Place, log: LogHistory, leader: int, isr: Sequence[int], having_deleted: set[int]
    ) -> None:
        """A replica gets in sync with the start of its leader. ``having_deleted`` might have led instead."""
        if leader in log.deleted_by:
            self._check_has_deleted(place, int(log.deleted_to), set(isr) - log.deleted_by, "gets in sync")
            log.deleted_by.update(isr)
        elif leader >= 0 and log.deleted_to:
            if having_deleted:
                self.broken(
                    "delete-records",
                    f"{leader} leads {place}, and was not in sync when records were deleted up to"
                    f" {log.deleted_to}: {sorted(having_deleted)} were",
                )
            self.excused("deleted-without")
            log.deleted_to = 0
            log.deleted_by.clear()

    def elected_unclean(self, place: Place, leader: int, epoch: int, able: Iterable[int]) -> None:
        """The controller decided as an operator asked, with these replicas that could lead."""
        known = self.partitions.get(place)
        if known is not None:
            known.unclean = UncleanElection(leader, epoch, frozenset(able))

    def replicas_lost(self, broker: int, *, everything: bool) -> None:
        """A machine lost what was not synced, or everything."""
        self.log_state.disk_lost(f"broker-{broker}")
        for place, known in self.partitions.items():
            if everything:
                self.logs[*place, known.topic_id].deleted_by.discard(broker)
            if everything or not self.settings_of(place[0]).flush_each:
                self.replica_lost(place, broker)

    def replica_lost(self, place: Place, broker: int) -> None:
        """One replica lost what was not synced."""
        self.log_state.disk_lost(f"broker-{broker}")
        known = self.partitions.get(place)
        if known is not None:
            had_forgotten = known.holders.has_forgotten
            known.holders.lost(broker)
            self.compaction.replica_lost(place)
            known.lost_s[broker] = self.now()
            self._note_forgotten(place, known, had_forgotten)

    def _note_forgotten(self, place: Place, known: PartitionHistory, had_forgotten: bool) -> None:
        if known.holders.has_forgotten and not had_forgotten:
            self.events.count("partitions that may forget")
            self.events.add(
                f"no replica of {place} holds all that was acknowledged: it may forget", "the world"
            )

    def registered(self, broker: int, lost: LostReplicas, *, is_new: bool = True) -> None:
        """A broker has registered, and said what it may have lost.

        Unless ``is_new`` it wrote its registration once more, when its losses had been heeded. That may come
        to the store when the process is gone, and says nothing of the start of the next one.
        """
        if not lost.first_epoch:  # Else it repeats the report of that registration.
            self._registered_s[broker] = self.now()
        if is_new:
            self._started_s[broker] = self.now()
        self.deposed.registered(broker, self.now())
        started_s = self.started_s(broker)
        for place, known in self.partitions.items():
            is_found = started_s is not None and known.lost_s.get(broker, started_s) < started_s
            if is_new and is_found and not lost.is_lost(*place) and self.has_opened(broker, place):
                # Its start has found nothing missing. A directory that it cannot open is read by a later one.
                known.holders.unreported.pop(broker, None)

    def has_registered_since(self, broker: int, since_s: float) -> bool:
        """Whether a process of a broker has registered first after that time."""
        return self._started_s.get(broker, since_s) > since_s

    def loss_read(self, broker: int, lost: LostReplicas) -> None:
        """The controller has read in a registration what a broker may have lost."""
        registered_s = self._registered_s.get(broker, NEVER)
        for place, known in self.partitions.items():
            if not lost.is_lost(*place) or self._made_s[known.topic_id] > registered_s:
                continue  # A report says nothing of what was made since.
            if known.lost_s.get(broker, registered_s) <= registered_s:
                known.holders.reported(broker)
            known.reported_lost.add(broker)
            if broker == known.last_leader and lost.is_missing(*place):
                known.is_last_leader_lost = True

    def replica_cut(self, place: Place, broker: int) -> None:
        """A replica that was reported as lost follows another, and has cut what it was not sure of."""
        self.compaction.replica_lost(place)
        known = self.partitions.get(place)
        if known is not None and broker in known.holders.since:
            had_forgotten = known.holders.has_forgotten
            known.holders.cut(broker)
            self.excused("not-trusted")
            self._note_forgotten(place, known, had_forgotten)

    def may_lose(self, broker: int) -> bool:
        """Whether every partition has another replica that holds everything."""
        return all(
            broker not in known.holders.since or len(known.holders.since) > 1
            for known in self.partitions.values()
        )

    def may_forget(self, place: Place) -> bool:
        """Whether a partition may have lost committed records, or does not exist any more."""
        known = self.partitions.get(place)
        return known is None or known.holders.has_forgotten

    def needs_election(self, place: Place) -> bool:
        """Whether nobody leads, and nobody that is trusted could."""
        known = self.partitions.get(place)
        return known is not None and known.leader < 0 and known.holders.is_hopeless

    def controller_begins(self, epoch: int) -> None:
        """A broker takes the office of controller, in this epoch."""
        if epoch <= self._controller_epoch:
            self.broken("one-controller", f"epoch {epoch} comes after epoch {self._controller_epoch}")
        self._controller_epoch = epoch

    def controller_wrote(self, place: Place, epoch: int) -> None:
        """The controller of this epoch wrote the state of a partition."""
        if epoch != self._controller_epoch:
            self.broken(
                "one-controller",
                f"the controller of epoch {epoch} wrote a state of {place} in epoch {self._controller_epoch}",
            )

    def leads(self, place: Place, topic_id: bytes, epoch: int, broker: int) -> None:
        """A broker takes itself for the leader."""
        other = self._leaders.setdefault(((*place, topic_id), epoch), broker)
        if other != broker:
            self.broken("one-leader", f"{place} is led by {other} and by {broker} in epoch {epoch}")

    # -- producers

    def sending(self, message: Message, sent: Sent) -> None:
        """A record is sent, for the first time or again."""
        known = self.sent.setdefault(message, sent)
        known.first_s = known.first_s or self.now()
        known.times += 1
        known.unanswered += 1

    def answered(self, messages: Sequence[Message]) -> None:
        """An attempt was answered, with an error or without."""
        for message in messages:
            self.sent[message].unanswered -= 1

    def acknowledged(
        self,
        place: Place,
        topic_id: bytes,
        base_offset: int,
        messages: Sequence[Message],
        *,
        sent_s: float,
        answered_s: float,
        broker: int,
    ) -> None:
        """A produce was answered by ``broker`` without an error, and the answer has come."""
        now = self.now()
        acks = self.sent[messages[0]].acks
        self.events.count(f"batches acknowledged with acks={acks}")
        for message in messages:
            self.sent[message].settled_s = now
        if base_offset < 0:
            self.excused("duplicate")
            return
        log = self.logs[*place, topic_id]
        known = self.partitions.get(place)
        if known is None or known.topic_id != topic_id:
            self.excused("recreated")
            return
        if acks == LEADER and known.leader >= 0 and known.leader != broker:
            self._check_session(place, known, broker, answered_s)
        if acks == ALL:
            end = base_offset + len(messages)
            self._check_min_isr(place, known, end, sent_s, broker)
            self._check_in_sync(place, known, known.holders.isr, end, answered_s)
        for offset, message in enumerate(messages, base_offset):
            self._agree(place, offset, message, log, acks == ALL)
            if acks == ALL:
                log.acknowledged[offset] = (message, answered_s)
            elif known.changed_s < sent_s and known.leader == broker:
                log.led[offset] = LedRecord(message, known.epoch, broker)

    def _check_session(self, place: Place, known: PartitionHistory, broker: int, answered_s: float) -> None:
        """A former leader has acknowledged a record with acks=1."""
        self.events.count("acks=1 of former leaders")
        started_s = self.started_s(broker)
        if started_s is None:
            return
        late_s = self.deposed.overdue_s(place, broker, known.led_s, answered_s, started_s)
        if late_s > 0:
            self.broken(
                "session",
                f"{broker} acknowledges writes to {place}, and should have stopped {late_s:.1f} s ago:"
                f" {known.leader} leads, and its own session has ended",
            )

    def committed(
        self, place: Place, topic_id: bytes, epoch: int, broker: int, end: int, since_s: float
    ) -> None:
        """The high watermark of a leader has come to ``end`` since ``since_s``."""
        known = self.partitions.get(place)
        if known is None or (known.topic_id, known.epoch, known.leader) != (topic_id, epoch, broker):
            return
        self._check_min_isr(place, known, end, since_s, broker, "committed")
        self._check_in_sync(place, known, known.holders.isr, end, self.now(), "committed")
        if self.settings_of(place[0]).flush_each:
            self._check_synced(place, known, end)

    def _check_synced(self, place: Place, known: PartitionHistory, end: int) -> None:
        """With flush.messages=1 the in-sync set has on its disks what is committed."""
        for broker in known.holders.isr:
            if known.holders.since.get(broker, NEVER) > self.now() or self.started_s(broker) is None:
                continue
            synced = self.synced_end(place, broker)
            if 0 <= synced < end:
                self.broken(
                    "committed",
                    f"{place} is committed up to {end} with flush.messages=1, and {broker} of the in-sync set"
                    f" {known.holders.isr} has it on its disk up to {synced}",
                )
                return

    def _check_min_isr(
        self,
        place: Place,
        known: PartitionHistory,
        end: int,
        sent_s: float,
        leader: int,
        promise: str = "min-isr",
    ) -> None:
        """Counts the replicas that have the records; those that were restarted since are believed.

        A leader may hear late what a replica had that has lost it since.
        """
        told_s = sent_s if promise == "min-isr" else sent_s - TOLD_LATE_S
        ends = self.replica_ends(place)
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
        elif not self.min_insync.explains(place[0], leader, having + believed + removed, sent_s):
            self.broken(
                promise,
                f"{place} offset {end - 1} was {_DONE[promise]} while {having} of {known.replicas} had it,"
                f" and {believed + removed} may have had it (log ends {dict(ends)}, min.insync.replicas"
                f" {least})",
            )

    def _check_in_sync(
        self,
        place: Place,
        known: PartitionHistory,
        members: Iterable[int],
        end: int,
        answered_s: float,
        promise: str = "in-sync",
    ) -> None:
        """``members`` of the in-sync set have all before ``end``, acknowledged at ``answered_s``."""
        for broker in self._lacking(place, known, members, end, answered_s):
            self.broken(
                promise,
                f"{place} offset {end - 1} was {_DONE[promise]}, and broker {broker} of the in-sync set"
                f" {known.holders.isr} has it not (log ends {dict(self.replica_ends(place))})",
            )
            return

    def _lacking(
        self, place: Place, known: PartitionHistory, members: Iterable[int], end: int, answered_s: float
    ) -> list[int]:
        """Those of ``members`` that hold what was acknowledged at ``answered_s``, and end before ``end``."""
        ends = self.replica_ends(place)
        return [
            broker
            for broker in members
            if known.holders.since.get(broker, NEVER) <= answered_s and ends.get(broker, end) < end
        ]

    def refused_sequence(self, place: Place, topic_id: bytes, refusal: str, *, in_doubt: bool) -> None:
        """An idempotent producer is refused although nothing is missing before its batch."""
        if self.may_forget(place):
            self.excused("forgotten")
        elif in_doubt and self._may_be_gone(place, topic_id):
            self.excused("deleted-in-doubt")
        else:
            self.broken("sequence", f"{refusal}, and all was acknowledged before")

    def _may_be_gone(self, place: Place, topic_id: bytes) -> bool:
        settings = self.settings_of(place[0])
        is_retained = settings.retention_bytes >= 0 or settings.retention_ms >= 0 or settings.compacts
        return is_retained or self.logs[*place, topic_id].delete_tried_to > 0

    def producer_id_given(self, producer: str, producer_id: int) -> None:
        """A producer asked for an id, and got this one."""
        other = self._producer_ids.setdefault(producer_id, producer)
        if other != producer or producer_id < 0:
            self.broken("producer-id", f"{producer} is given id {producer_id}, which {other} has")

    # -- consumers

    def saw(
        self,
        place: Place,
        topic_id: bytes,
        offset: int,
        message: Message,
        asked_s: float,
        answered_s: float,
        broker: int,
    ) -> None:
        """A consumer was given a record, by an answer that the broker sent at ``answered_s``."""
        log = self.logs[*place, topic_id]
        sent = self.sent.get(message)
        if sent is None or sent.place != place or not sent.times:
            self.broken("no-invention", f"{place} offset {offset} holds {message}, which was not sent there")
            return
        self._check_incarnation(place, topic_id, offset, message, sent)
        is_deleted = offset < log.deleted_to and log.deleted_s < asked_s
        if is_deleted and not self._may_know_no_deletion(place, broker):
            self.broken(
                "delete-records", f"{place} offset {offset} is read, and was deleted up to {log.deleted_to}"
            )
        self._agree(place, offset, message, log, is_committed=True)
        log.read.setdefault(offset, (message, answered_s))

    def _check_incarnation(
        self, place: Place, topic_id: bytes, offset: int, message: Message, sent: Sent
    ) -> None:
        made_s = self._made_s.get(topic_id, 0.0)
        is_other = bool(sent.topic_id) and sent.topic_id != topic_id
        is_before = sent.settled_s is not None and not sent.unanswered and sent.settled_s < made_s
        if is_other or is_before:
            self.broken(
                "new-topic",
                f"{place} offset {offset} holds {message} of a topic of that name that was deleted",
            )

    def _agree(
        self, place: Place, offset: int, message: Message, log: LogHistory, is_committed: bool
    ) -> None:
        if not is_committed:
            return  # Another leader may give the offset to another record.
        for what, known in (("acknowledged", log.acknowledged), ("read", log.read)):
            other, _ = known.get(offset, (message, 0.0))
            if other != message and not (self.may_forget(place) and self.excused("forgotten")):
                self.broken(
                    "one-record", f"{place} offset {offset} holds {message}, and {other} was {what} there"
                )

    def skipped(self, consumer: str, place: Place, topic_id: bytes, position: int, found: int) -> None:
        """A consumer asked for one offset, and was given a later one."""
        if self.compaction.is_compacted(place):
            self.compaction.skipped(consumer, place, topic_id, position, found)
        elif not (self.may_forget(place) and self.excused("forgotten")):
            self.broken("no-gap", f"{consumer} asked {place} for offset {position}, and was given {found}")

    def end_told(self, consumer: str, place: Place, topic_id: bytes, end: int, how: str) -> None:
        """A consumer was told where the partition ends for readers."""
        key = (consumer, (*place, topic_id))
        before = self._ends.get(key, -1)
        if end < before and not (self.may_forget(place) and self.excused("forgotten")):
            self.broken(
                "high-watermark", f"{consumer} was told that {place} ends at {before}, and now {end} ({how})"
            )
        self._ends[key] = max(before, end)

    def _may_know_no_deletion(self, place: Place, broker: int) -> bool:
        """Whether a broker need not know that records were deleted."""
        known = self.partitions.get(place)
        if known is not None and known.leader != broker != ANY_BROKER:
            return self.excused("former-leader")
        return self.may_forget(place) and self.excused("forgotten")

    def start_told(
        self, place: Place, topic_id: bytes, start: int, asked_s: float, broker: int = ANY_BROKER
    ) -> None:
        """A consumer that asked ``broker`` at this time was told where the log starts."""
        log = self.logs[*place, topic_id]
        settings = self.settings_of(place[0])
        is_moved = settings.retention_bytes >= 0 or settings.retention_ms >= 0
        is_deleted = start < log.deleted_to and log.deleted_s < asked_s
        if is_deleted and not self._may_know_no_deletion(place, broker):
            self.broken(
                "delete-records", f"{place} starts at {start}, and was deleted up to {log.deleted_to}"
            )
        is_started_late = start > log.delete_tried_to and not is_moved
        if is_started_late and not (self.may_forget(place) and self.excused("forgotten")):
            self.broken(
                "log-start",
                f"{place} starts at {start}, and nobody deleted records from {log.delete_tried_to} on",
            )
        if settings.retention_ms >= 0 and settings.retention_bytes < 0:
            self._check_retained(place, topic_id, start, settings.retention_ms)

    def _check_retained(self, place: Place, topic_id: bytes, start: int, retention_ms: int) -> None:
        """Records that are known, and are gone, were older than retention.ms."""
        log = self.logs[*place, topic_id]
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
            if age_ms >= retention_ms or self.compaction.was_taken(place, topic_id, offset, message):
                continue
            if age_ms + self.clock_ahead_ms >= retention_ms and self.excused("clock-turned"):
                continue
            if not (self.may_forget(place) and self.excused("forgotten")):
                self.broken(
                    "retention",
                    f"{place} starts at {start}; {message} at {offset} is {age_ms:.0f} ms old at most, and"
                    f" retention.ms is {retention_ms}",
                )
                return

    def out_of_range(
        self, consumer: str, place: Place, topic_id: bytes, position: int, start: int, end: int
    ) -> None:
        """A position that a consumer had come to is refused; it was then told the start and the end."""
        if position < start:
            self.events.count("out of range below the start")
        elif position > end and not (self.may_forget(place) and self.excused("forgotten")):
            self.broken("read", f"{consumer} has read {place} up to {position}, which ends at {end} now")

    # -- administrators

    def delete_tried(self, place: Place, topic_id: bytes, offset: int) -> None:
        """DeleteRecords is asked for; -1 for the high watermark."""
        log = self.logs[*place, topic_id]
        log.delete_tried_to = max(log.delete_tried_to, float("inf") if offset < 0 else offset)

    def delete_answered(self, place: Place, topic_id: bytes, offset: int, broker: int) -> None:
        """``broker`` answered DeleteRecords without an error: nothing below ``offset`` is there."""
        log = self.logs[*place, topic_id]
        self.events.count("record deletions")
        known = self.partitions.get(place)
        if known is not None and known.leader != broker:
            self.excused("former-leader")
            return
        self._check_durable_start(place, offset, broker)
        if known is not None:
            others = set(known.holders.isr) - {broker} - set(known.holders.unreported)
            self._check_has_deleted(place, offset, others, "is in sync")
        if offset > log.deleted_to:
            log.deleted_to, log.deleted_s = offset, self.now()
            # The eligible were in sync when the broker answered: it waits for min.insync.replicas.
            holders = known.holders if known is not None else None
            log.deleted_by = set() if holders is None else {broker, *holders.isr, *holders.eligible}

    def _check_has_deleted(self, place: Place, offset: int, brokers: Iterable[int], what: str) -> None:
        """Whoever may be elected must not bring back what was deleted below ``offset``."""
        for broker in sorted(brokers):
            start = self.live_start(place, broker)
            if 0 <= start < offset and not (self.may_forget(place) and self.excused("forgotten")):
                self.broken(
                    "delete-records",
                    f"{broker} {what} for {place}, whose records below {offset} were deleted, and its log"
                    f" starts at {start}",
                )

    def _check_durable_start(self, place: Place, offset: int, broker: int) -> None:
        if self.started_s(broker) is None:
            return  # Its process has ended since it answered, and the machine may have another disk.
        start = self.durable_start(place, broker)
        if 0 <= start < offset and not (self.may_forget(place) and self.excused("forgotten")):
            self.broken(
                "told-start",
                f"{broker} has deleted the records of {place} below {offset}, and a power cut would leave its"
                f" log starting at {start}",
            )

    # -- groups

    def commits_of(self, group: str, place: Place) -> Commits:
        """The history of a group's position."""
        return self._commits.setdefault((group, place), Commits())

    def commit_tried(self, group: str, place: Place, offset: int) -> None:
        """A commit is on its way: it may be found from now on."""
        self.commits_of(group, place).tried[offset] += 1

    def commit_refused(self, group: str, place: Place, offset: int) -> None:
        """A commit was answered with an error."""
        self.commits_of(group, place).tried[offset] -= 1

    def commit_acknowledged(
        self, group: str, place: Place, offset: int, *, sent_s: float = 0.0, generation: int = -1
    ) -> None:
        """A commit was answered without an error."""
        self.events.count("commits acknowledged")
        commits = self.commits_of(group, place)
        commits.tried[offset] -= 1
        commits.settled = max(commits.settled, offset)
        what = f"committed {offset} for {place}"
        self.accepted_in_generation(group, what, sent_s=sent_s, generation=generation)

    def accepted_in_generation(self, group: str, what: str, *, sent_s: float, generation: int) -> None:
        """A request of a member in a generation was answered without an error."""
        newest, assigned_s = self._assignments.get(group, (-1, 0.0))
        is_old = 0 <= generation < newest and assigned_s < sent_s
        # A group that is forgotten counts its generations from 1 again.
        if is_old and not (self.may_forget(GROUPS_LOG) and self.excused("forgotten")):
            self.broken(
                "generation",
                f"a member of {group} {what} in generation {generation} of all, and was not refused; the"
                f" members of generation {newest} had their assignment before that was asked",
            )

    def joined(self, group: str, generation: int, leader: str) -> int:
        """A member came into a generation: how many were before. An emptied group counts from 1 again.

        So does a coordinator that could not write the last ones: nobody had an assignment in them.
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
        """A member was given its assignment, in the generation that :meth:`joined` gave this number."""
        owners = self._owners.setdefault((group, order), {})
        for partition in partitions:
            owner = owners.setdefault(partition, member)
            if owner != member and not (self.may_forget(GROUPS_LOG) and self.excused("forgotten")):
                self.broken(
                    "owner",
                    f"{member} and {owner} of {group} own partition {partition} in generation {order}",
                )
        newest, _ = self._assignments.get(group, (-1, 0.0))
        if order > newest:
            self._assignments[group] = (order, self.now())

    def committed_found(
        self, group: str, place: Place, offset: int, log_place: Place, broker: int, least: int
    ) -> bool:
        """A group asked ``broker`` for its position; it was ``least`` or more when it asked.

        ``log_place`` is the partition that keeps positions. False: the broker is a former coordinator.
        """
        known = self.partitions.get(log_place)
        if known is None or known.leader != broker:
            return not self.excused("former-coordinator")
        commits = self.commits_of(group, place)
        is_known = offset >= least and (offset <= commits.settled or commits.tried[offset] > 0)
        is_doubtful = commits.has_no_members and commits.tried[offset] > 0
        if is_known:
            commits.settled = max(commits.settled, offset)
        elif is_doubtful:
            self.excused("in-doubt")
        elif not (self.may_forget(log_place) and self.excused("forgotten")):
            tried = sorted(offset for offset, count in commits.tried.items() if count)
            self.broken(
                "positions",
                f"{group} had position {least} in {place} (in doubt: {tried}), and finds {offset}",
            )
        return True

    # -- the end

    def check_log(
        self, place: Place, topic_id: bytes, start: int, end: int, log: Sequence[tuple[int, Message]]
    ) -> None:
        """``log`` is all that a partition holds in the end, from ``start`` to ``end``."""
        self.check_lost(place, topic_id, start, dict(log))
        self.compaction.check_skips(place, topic_id, start, dict(log))
        self.start_told(place, topic_id, start, self.now())
        times = Counter(message for _, message in log)
        for message, count in times.items():
            sent = self.sent.get(message)
            if sent is None or sent.place != place or count > (1 if sent.session >= 0 else sent.times):
                self.broken("no-invention", f"{place} holds {message} {count} times: {sent}")
                return
            if sent.acks == NONE and count > 1:
                self.broken("acks-0", f"{place} holds {message} {count} times")
        for offset, message in log:
            self._check_incarnation(place, topic_id, offset, message, self.sent[message])
        self._check_order(place, topic_id, log)

    def check_lost(self, place: Place, topic_id: bytes, start: int, log: Mapping[int, Message]) -> None:
        """``log`` holds what was acknowledged or read from ``start`` on."""
        history = self.logs[*place, topic_id]
        known = self.partitions[place]

        def is_gone(offset: int, message: Message) -> bool:
            return offset >= start and log.get(offset) != message

        for promise, records in (("acks-all", history.acknowledged), ("read", history.read)):
            gone = {offset: message for offset, (message, _) in records.items() if is_gone(offset, message)}
            compacted = self.compaction.explains(place, topic_id, log, gone)
            for offset, message in gone.items():
                if offset in compacted:
                    continue
                _, at_s = records[offset]
                if known.holders.holds(at_s):
                    self.broken(promise, self._missing(place, offset, message, log))
                    return
                self.excused("lost")
        gone = {offset: led.message for offset, led in history.led.items()}
        gone = {offset: message for offset, message in gone.items() if is_gone(offset, message)}
        compacted = self.compaction.explains(place, topic_id, log, gone)
        for offset, led in history.led.items():
            if offset not in gone or offset in compacted:
                continue
            if known.epoch == led.epoch and led.leader not in known.lost_s:
                self.broken("acks-1", self._missing(place, offset, led.message, log))
                return
            self.excused("new-leader")

    def _missing(self, place: Place, offset: int, message: Message, log: Mapping[int, Message]) -> str:
        return (
            f"{message} was at {place} offset {offset}, which holds {log.get(offset)} now"
            f" ({len(log)} records up to {max(log, default=-1)}; it is held by"
            f" {self.partitions[place].holders.since})"
        )

    def _check_order(self, place: Place, topic_id: bytes, log: Sequence[tuple[int, Message]]) -> None:
        """Idempotent producers: the first record in the log may be any, as the log start moves."""
        last: dict[tuple[str, int], tuple[int, Message]] = {}
        for offset, message in log:
            sent = self.sent[message]
            if sent.session < 0:
                continue
            key = (message.producer, sent.session)
            before, other = last.get(key, (sent.sequence - 1, None))
            if sent.sequence != before + 1 and not self.compaction.explains_gap(
                place, topic_id, log, offset, (message.producer, sent.session), (before + 1, sent.sequence)
            ):
                if not (self.may_forget(place) and self.excused("forgotten")):
                    self.broken(
                        "order",
                        f"{place} offset {offset} holds {message} (sequence {sent.sequence}) after {other}"
                        f" (sequence {before})",
                    )
                return
            last[key] = (sent.sequence, message)


ALWAYS_RUNNING = float("inf")


@dataclass(slots=True)
class Commits:
    """A group's position in one partition."""

    settled: int = -1
    """The largest that was acknowledged or found."""
    tried: Counter[int] = field(default_factory=Counter)
    """Commits that have no answer, by offset."""
    has_no_members: bool = False
