"""The rules for compacted topics: records that compaction may remove, and deviations from other promises that
this excuses.

A compacted log has holes. An acknowledged or read record may be missing once a newer record of its key exists
(excuse ``compacted``), or once a tombstone of its key is older than ``delete.retention.ms`` (excuse
``tombstone-expired``). A removed record does not return (promise ``compaction``), with one exception, which
Apache Kafka has too: a replica that had not fetched a tombstone before other replicas removed it keeps the
records that the tombstone deletes (excuse ``tombstone-missed``). Each compaction is checked when it ends:
:mod:`simulated_compaction`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from keyed_messages import is_tombstone, key_of

if TYPE_CHECKING:
    from promises import LogHistory, Message, PartitionKey, Promises


TOPIC = "t"
"""What clients send records with keys to."""


class Skip(NamedTuple):
    """A consumer requested one offset, and received a later one."""

    consumer: str
    position: int
    found: int


class Raw(NamedTuple):
    """A record as stored in a log."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @staticmethod
    def of(record: Any) -> Raw:
        """Creates the record from a read record."""
        headers = tuple((name, value) for name, value in record.headers)
        return Raw(int(record.offset), int(record.timestamp), record.key, record.value, headers)


class CompactionPromise:
    """Explains the holes of compacted logs, and detects unexplained holes."""

    def __init__(self, promises: Promises) -> None:
        self.promises = promises
        self._skips: defaultdict[tuple[str, int, bytes], list[Skip]] = defaultdict(list)
        self._removed: defaultdict[PartitionKey, dict[int, bytes]] = defaultdict(dict)
        """Tombstones that a replica has removed: their keys by offset."""
        self._missed: defaultdict[PartitionKey, set[int]] = defaultdict(set)
        """Those of them that another replica did not have then, or has lost since."""
        self.aborted: dict[PartitionKey, frozenset[str]] = {}
        """The messages of aborted transactions, at the end."""

    def is_compacted(self, tp: PartitionKey) -> bool:
        """Whether the partition's topic is compacted."""
        return self.promises.settings_of(tp[0]).compacts

    def _is_aborted(self, tp: PartitionKey, message: Message) -> bool:
        """Whether a message is of an aborted transaction: it replaces nothing, and is removed."""
        return str(message) in self.aborted.get(tp, ())

    # -- what the world reports

    def skipped(self, consumer: str, tp: PartitionKey, topic_id: bytes, position: int, found: int) -> None:
        """A consumer met a hole. check_skips() decides at the end whether it is explained."""
        self._skips[*tp, topic_id].append(Skip(consumer, position, found))

    def tombstones_removed(
        self, tp: PartitionKey, keys: Mapping[int, bytes], ends: Mapping[int, int]
    ) -> None:
        """A replica has removed tombstones; ``ends`` are the log ends of all replicas, on their disks."""
        for offset, key in keys.items():
            self._removed[tp][offset] = key
            if any(end <= offset for end in ends.values()):
                self._missed[tp].add(offset)

    def replica_lost(self, tp: PartitionKey, since: int = 0) -> None:
        """A replica has lost, or truncated, its records from an offset on.

        It fetches them again, possibly without removed tombstones.
        """
        self._missed[tp].update(offset for offset in self._removed[tp] if offset >= since)

    # -- tombstones

    def _newest(self, tp: PartitionKey, topic_id: bytes) -> dict[bytes, tuple[int, Message]]:
        """Returns the newest record of each key that clients know, and that was not lost."""
        history: LogHistory = self.promises.logs[*tp, topic_id]
        holders = self.promises.partitions[tp].holders
        newest: dict[bytes, tuple[int, Message]] = {}
        for records in (history.acknowledged, history.read):
            for offset, (message, at_s) in records.items():
                key = key_of(message)
                is_newer = offset > newest.get(key, (-1, message))[0]
                if holders.holds(at_s) and is_newer and not self._is_aborted(tp, message):
                    newest[key] = (offset, message)
        return newest

    def _is_over(self, tp: PartitionKey, message: Message) -> bool:
        """Whether a message is a tombstone that may have been removed by now."""
        if not is_tombstone(message):
            return False
        sent = self.promises.sent.get(message)
        if sent is None:
            return False
        age_ms = (self.promises.now() - sent.first_s) * 1000
        return self.promises.is_old_enough(age_ms, self.promises.settings_of(tp[0]).delete_retention_ms)

    # -- the end

    def explains(
        self, tp: PartitionKey, topic_id: bytes, log: Mapping[int, Message], missing: Mapping[int, Message]
    ) -> set[int]:
        """Returns the offsets of ``missing`` records that compaction may have removed from ``log``."""
        if not missing or not self.is_compacted(tp):
            return set()
        there: dict[bytes, int] = {}
        for offset, message in log.items():
            key = key_of(message)
            if not self._is_aborted(tp, message):
                there[key] = max(there.get(key, -1), offset)
        newest = self._newest(tp, topic_id)
        removed = {key: offset for offset, key in sorted(self._removed[tp].items())}
        explained = set()
        for offset, message in missing.items():
            key = key_of(message)
            if self._is_aborted(tp, message):
                self.promises.excused("aborted-removed")
                explained.add(offset)
                continue
            if there.get(key, -1) > offset:
                self.promises.excused("compacted")
                explained.add(offset)
                continue
            # No client may have read a tombstone before its removal.
            last, tombstone = max(newest.get(key, (-1, message)), (offset, message))
            is_over = self._is_over(tp, tombstone) or last < removed.get(key, -1)
            if is_over or self._was_replaced_by_unknown(tp, topic_id, message):
                self.promises.excused("tombstone-expired")
                explained.add(offset)
        return explained

    def _was_replaced_by_unknown(self, tp: PartitionKey, topic_id: bytes, message: Message) -> bool:
        """Whether an expired tombstone followed a message of unknown offset."""
        sent = self.promises.sent.get(message)
        if sent is None:
            return False
        history = self.promises.logs[*tp, topic_id]
        known = {one for records in (history.acknowledged, history.read) for one, _ in records.values()}
        return any(
            other.tp == tp
            and other.first_s >= sent.first_s
            and one != message
            and one not in known
            and key_of(one) == key_of(message)
            and self._is_over(tp, one)
            for one, other in self.promises.sent.items()
        )

    def was_taken(self, tp: PartitionKey, topic_id: bytes, offset: int, message: Message) -> bool:
        """Whether compaction may have removed a record before retention removed its segment."""
        if not self.is_compacted(tp):
            return False
        key = key_of(message)
        history = self.promises.logs[*tp, topic_id]
        log = {
            at: one for records in (history.acknowledged, history.read) for at, (one, _) in records.items()
        }
        log |= {at: led.message for at, led in history.led.items()}
        if self.explains(tp, topic_id, log, {offset: message}):
            return True
        # No client may know the offset of a newer one.
        since_s, known = self.promises.sent[message].first_s, set(log.values())
        is_newer = any(
            sent.tp == tp and sent.first_s >= since_s and one not in known and key_of(one) == key
            for one, sent in self.promises.sent.items()
            if one != message
        )
        return is_newer and self.promises.excused("compacted")

    def check_replica(
        self, tp: PartitionKey, topic_id: bytes, broker: int, start: int, log: Mapping[int, Message]
    ) -> None:
        """No record of a key exists if its newest record is a removed tombstone."""
        history = self.promises.logs[*tp, topic_id]
        for key, (offset, message) in self._newest(tp, topic_id).items():
            if offset < start or offset in log or not is_tombstone(message):
                continue
            of_key = [at for at, other in log.items() if key_of(other) == key]
            of_key = [at for at in of_key if not self._is_aborted(tp, log[at])]
            older = [at for at in of_key if at < offset]
            if not older:
                continue
            if any(at > offset for at in of_key):
                self.promises.excused("compacted")  # No client may know of the newer one.
                continue
            _, at_s = history.acknowledged.get(offset) or history.read[offset]
            if self._has_missed(tp, key, older[-1]):
                self.promises.excused("tombstone-missed")
            elif not self.promises.partitions[tp].holders.holds(at_s):
                self.promises.excused("lost")
            else:
                self.promises.broken(
                    "compaction",
                    f"{tp} on broker {broker} holds {log[older[-1]]} at offset {older[-1]}, and not its"
                    f" tombstone {message} of offset {offset}",
                )
                return

    def check_skips(self, tp: PartitionKey, topic_id: bytes, start: int, log: Mapping[int, Message]) -> None:
        """Each record that a consumer did not receive was replaced by a newer one, or by a tombstone."""
        history = self.promises.logs[*tp, topic_id]
        holders = self.promises.partitions[tp].holders
        known = {
            offset: message
            for records in (history.read, history.acknowledged)
            for offset, (message, at_s) in records.items()
            if holders.holds(at_s)
        }
        everything = {**{offset: led.message for offset, led in history.led.items()}, **known, **log}
        for skip in self._skips[*tp, topic_id]:
            missing = {
                offset: known[offset] for offset in range(skip.position, skip.found) if offset in known
            }
            explained = self.explains(tp, topic_id, everything, missing)
            unexplained = [offset for offset in missing if offset not in explained and offset >= start]
            if not unexplained:
                continue
            if self.promises.may_forget(tp):
                self.promises.excused("records-lost-before")
                continue
            offset = unexplained[0]
            self.promises.broken(
                "no-gap",
                f"{skip.consumer} fetched offset {skip.position} of {tp}, and received {skip.found}:"
                f" {missing[offset]} of offset {offset} is the last of its key",
            )
            return

    def explains_gap(
        self,
        tp: PartitionKey,
        topic_id: bytes,
        log: Sequence[tuple[int, Message]],
        end: int,
        producer: tuple[str, int],
        sequences: tuple[int, int],
    ) -> bool:
        """Whether all records may be missing that a producer, in one session, stored right before ``end``.

        ``sequences`` are the first of them and the one after the last.
        """
        if not self.is_compacted(tp) or sequences[1] < sequences[0]:
            return False
        gone = {
            sent.sequence: message
            for message, sent in self.promises.sent.items()
            if sent.tp == tp
            and (message.producer, sent.session) == producer
            and sequences[0] <= sent.sequence < sequences[1]
        }
        if len(gone) < sequences[1] - sequences[0]:
            return False
        # No client may know their offsets; a newer record of a key is after the gap, or in it.
        before = [offset for offset, message in log if offset < end and self._is_of(message, producer)]
        first = max(before, default=-1) + 1
        missing = {first + tp: gone[sequence] for tp, sequence in enumerate(sorted(gone))}
        return len(self.explains(tp, topic_id, dict(log), missing)) == len(missing)

    def _is_of(self, message: Message, producer: tuple[str, int]) -> bool:
        return (message.producer, self.promises.sent[message].session) == producer

    def _has_missed(self, tp: PartitionKey, key: bytes | None, offset: int) -> bool:
        """Whether a replica may lack a tombstone of a key after ``offset``."""
        removed = self._removed[tp]
        return any(at > offset and removed[at] == key for at in self._missed[tp])

    def _was_replaced(self, tp: PartitionKey, record: Raw) -> bool:
        """Whether a newer record of the key, by which a replica was compacted, may have existed."""
        if tp[0] != TOPIC:
            return True  # Records that brokers write themselves are not known here.
        topic_id = self.promises.partitions[tp].topic_id
        history = self.promises.logs[*tp, topic_id]
        known: dict[Message, int] = {led.message: at for at, led in history.led.items()}
        for records in (history.read, history.acknowledged):
            known |= {message: at for at, (message, _) in records.items()}
        return any(
            sent.tp == tp
            and sent.times > 0
            and known.get(message, record.offset + 1) > record.offset
            and key_of(message) == record.key
            for message, sent in self.promises.sent.items()
        )

    def difference(self, tp: PartitionKey, logs: Sequence[Sequence[Raw]]) -> str:
        """Returns the differences of replicas that compaction does not explain; empty if there are none."""
        held = [{record.offset: record for record in log} for log in logs]
        newest: dict[bytes | None, Raw] = {}
        for log in logs:
            for record in log:
                if record.offset >= newest.get(record.key, record).offset:
                    newest[record.key] = record
        there = [{record.key: record.offset for record in log} for log in logs]
        for offset in sorted({offset for log in held for offset in log}):
            found = [log[offset] for log in held if offset in log]
            if any(record != found[0] for record in found):
                return f"they hold {found} at offset {offset}"
            if len(found) == len(held):
                continue
            record = found[0]
            lacking = [at for at, log in enumerate(held) if offset not in log]
            if all(there[at].get(record.key, -1) > offset for at in lacking):
                self.promises.excused("compacted")
                continue
            last = newest[record.key]
            retention_ms = self.promises.settings_of(tp[0]).delete_retention_ms
            if last.value is None and self.promises.is_tombstone_over(last.timestamp, retention_ms):
                self.promises.excused("tombstone-expired")
                continue
            if self._has_missed(tp, record.key, offset):
                self.promises.excused("tombstone-missed")
                continue
            if self.promises.may_forget(tp) and self._was_replaced(tp, record):
                self.promises.excused("records-lost-before")
                continue
            return f"some lack {record}, of whose key they hold nothing newer"
        return ""
