"""Checks whether a log can produce a history, as Jepsen's Kafka workload does.

The final content of the partitions is compared with all other events. :mod:`fault_excuses` has the permitted
losses, which are counted.

| anomaly | meaning |
|---|---|
| lost | an acknowledged message is missing |
| vanished | a record that a reader received is missing or has changed |
| inconsistent-offset | an acknowledged offset has another message |
| duplicate | a message of an idempotent writer exists twice |
| reordered | messages of an idempotent writer are not in the order of their writes |
| phantom | no writer wrote the message |
| refused-but-there | a definitely refused message exists |
| hole | offsets are missing |
| nonmonotonic-poll | the position of a reader moved back without a seek |
| internal-skip | one poll skipped records |
| external-skip | records between two polls were skipped |
| group-back | a member started before the committed offset |
| group-skip | no member of a group received a record, although later records were received |
| unread | a reader has stopped before the end |
| reset | a reader's offset was out of range |
| undeleted | records exist that DeleteRecords deleted |
| overdeleted | records are missing without a DeleteRecords request |
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from fault_excuses import Excuses
from fault_history import Event


class Anomaly(NamedTuple):
    """A violation of a promise."""

    kind: str
    text: str


class Clients(NamedTuple):
    """Facts about clients, by their names."""

    idempotent: frozenset[str] = frozenset()
    """Writers whose messages may be there only once."""
    to_end: frozenset[str] = frozenset()
    """Readers that read everything to the end."""
    group: frozenset[str] = frozenset()
    """Members of the group."""
    patient: frozenset[str] = frozenset()
    """Readers that restart if the records that they have read were lost."""


class Ack(NamedTuple):
    """An acknowledged message."""

    place: int
    offset: int
    value: str
    acks: int
    at: float


Polls = list[tuple[str, float, list[tuple[int, int, str]]]]
"""Of a reader ``("poll", time, records)``, ``("place", time, partitions)`` in order."""


class Checker:
    """Reads a history event by event."""

    def __init__(self, clients: Clients, loose: Container[int] = ()) -> None:
        """``loose``: the partitions that may lose unsynced records."""
        self._clients = clients
        self._loose = loose
        self._excuses = Excuses()
        self._sent: dict[int, dict[str, float]] = defaultdict(dict)
        """The messages of each partition, and when they were handed over."""
        self._acked: list[Ack] = []
        self._refused: list[tuple[int, str, str]] = []
        self._polls: dict[str, Polls] = defaultdict(list)
        self._final: dict[int, dict[int, str]] = {}
        self._begins: dict[int, int] = {}
        self._deleting: dict[int, int] = defaultdict(int)
        self._deleted: dict[int, tuple[int, float]] = {}
        self._found: list[Anomaly] = []
        self.counts: Counter[str] = Counter()
        self._committed: dict[int, int] = {}
        self._floors: dict[tuple[str, int], int] = {}

    def take(self, events: Iterable[Event]) -> None:
        """Reads a history."""
        for event in events:
            self.counts[event["op"]] += 1
            take = getattr(self, f"_record_{event['op']}", None) or getattr(
                self._excuses, f"record_{event['op']}", None
            )
            if take is not None:
                take(event)

    def _record_send(self, event: Event) -> None:
        self._sent[event["p"]][f"{event['by']} {event['n']}"] = event["at"]

    def _record_ack(self, event: Event) -> None:
        value = f"{event['by']} {event['n']}"
        self._acked.append(Ack(event["p"], event["o"], value, event["acks"], event["at"]))

    def _record_fail(self, event: Event) -> None:
        if event["sure"]:
            self._refused.append((event["p"], f"{event['by']} {event['n']}", event["error"]))

    def _record_poll(self, event: Event) -> None:
        self.counts["records"] += len(event["m"])
        self._polls[event["by"]].append(("poll", event["at"], [(p, o, v) for p, o, v in event["m"]]))
        if event["by"] in self._clients.group:
            self._check_begin(event)

    def _record_place(self, event: Event) -> None:
        self._polls[event["by"]].append(("place", event["at"], [(p, -1, "") for p in event["p"]]))
        for place in event["p"]:
            self._floors[event["by"], place] = self._committed.get(place, 0)

    def _check_begin(self, event: Event) -> None:
        """The first record after an assignment must not be before the offset committed at that time."""
        for place, offset, _ in event["m"]:
            floor = self._floors.pop((event["by"], place), None)
            if floor is not None and offset < floor:
                self._note(
                    "group-back",
                    f"{event['by']} began partition {place} at {offset}, {floor} was committed",
                )

    def _record_commit(self, event: Event) -> None:
        place, offset = event["p"], event["o"]
        self._committed[place] = max(self._committed.get(place, 0), offset)

    def _record_reset(self, event: Event) -> None:
        if event["by"] not in self._clients.patient:
            self._note("reset", f"{event['by']}, partition {event['p']} at {event['at']}: {event['error']}")

    def _record_deleting(self, event: Event) -> None:
        self._deleting[event["p"]] = max(self._deleting[event["p"]], event["o"])

    def _record_deleted(self, event: Event) -> None:
        self._deleted[event["p"]] = (event["o"], event["at"])

    def _record_final(self, event: Event) -> None:
        place, begin = event["p"], event["s"]
        self._final[place] = dict(event["m"])
        self._begins[place] = begin
        offsets = [offset for offset, _ in event["m"]]
        if offsets != list(range(begin, begin + len(offsets))):
            missing = sorted(set(range(begin, max(offsets) + 1)) - set(offsets))[:5]
            self._note(
                "hole", f"partition {place} has {len(offsets)} records from {begin} on, missing are {missing}"
            )

    def _note(self, kind: str, text: str) -> None:
        self._found.append(Anomaly(kind, text))

    # The verdict

    def anomalies(self) -> list[Anomaly]:
        """Returns the violations; to be called once, after the history."""
        if not self._final:
            self._note("unread", "the partitions were not read at the end")
            return self._found
        values = {place: Counter(held.values()) for place, held in self._final.items()}
        self._check_acknowledgements(values)
        for place, value, error in self._refused:
            if values[place][value]:
                self._note("refused-but-there", f"{value} in partition {place}: {error}")
        for place in self._final:
            self._check_begin_of(place)
            self._check_order(place)
        for reader, steps in self._polls.items():
            self._check_reader(reader, steps)
        self._check_group()
        return self._found

    def _check_begin_of(self, place: int) -> None:
        """The log start offset is one that was requested, or that DeleteRecords returned."""
        begin = self._begins[place]
        if begin > self._deleting[place]:
            self._note(
                "overdeleted", f"partition {place} begins at {begin}, asked was for {self._deleting[place]}"
            )
        deleted, at = self._deleted.get(place, (0, 0.0))
        if begin < deleted and not self._is_lost_by_all(place, at):
            self._note(
                "undeleted", f"partition {place} begins at {begin}, answered was {deleted} after {at} s"
            )

    def _check_acknowledgements(self, values: Mapping[int, Counter[str]]) -> None:
        kept = self._kept_from()
        read: dict[int, dict[int, str]] = defaultdict(dict)
        for reader in self._clients.to_end:
            for step, _, records in self._polls.get(reader, []):
                if step == "poll":
                    for place, offset, value in records:
                        read[place][offset] = value
        for one in self._acked:
            begin = self._begins[one.place]
            writer, number = one.value.split()
            is_kept = int(number) >= kept[one.place, writer]
            if one.offset < begin and (one.offset >= 0 or not is_kept):
                self.counts["deleted messages"] += 1
                seen = read[one.place].get(one.offset, one.value)
                if seen != one.value and not self._is_excused(one):
                    self._note(
                        "lost", f"{one.value} of partition {one.place} at {one.offset}: {seen} was read"
                    )
                continue
            if not values[one.place][one.value]:
                kind, held = "lost", "nothing"
            elif one.offset >= 0 and self._final[one.place].get(one.offset) != one.value:
                kind, held = "inconsistent-offset", str(self._final[one.place].get(one.offset))
            else:
                continue
            if not self._is_excused(one):
                self._note(
                    kind,
                    f"{one.value} of partition {one.place}, acknowledged at {one.offset} with "
                    f"acks={one.acks} after {one.at} s: {held} is there",
                )

    def _kept_from(self) -> dict[tuple[int, str], float]:
        """Returns the first message of each partition and writer that deletions certainly kept."""
        kept: dict[tuple[int, str], float] = defaultdict(lambda: float("inf"))
        for place, begin in self._begins.items():
            if not begin:
                kept |= {(place, writer): 0 for writer in {one.value.split()[0] for one in self._acked}}
        for one in self._acked:
            if one.offset >= self._begins[one.place]:
                writer, number = one.value.split()
                kept[one.place, writer] = min(kept[one.place, writer], int(number))
        return kept

    def _is_excused(self, one: Ack) -> bool:
        """Whether an acknowledged message may be missing, or have another offset."""
        if one.acks != 1:
            return self._is_lost_by_all(one.place, one.at)
        # A later offset of all replicas proves that they had this one too: the leader was the same.
        later = (
            other.at
            for other in self._acked
            if other.place == one.place
            and other.acks != 1
            and other.offset > one.offset
            and other.at > one.at
        )
        sent = self._sent[one.place].get(one.value, one.at)
        if self._excuses.has_new_leader(one.place, sent, min(later, default=float("inf"))):
            self.counts["excused by a new leader"] += 1
            return True
        return self._is_lost_by_all(one.place, one.at)

    def _is_lost_by_all(self, place: int, at: float) -> bool:
        if place in self._loose and self._excuses.is_lost_by_all(at):
            self.counts["excused by power cuts of all"] += 1
            return True
        return False

    def _check_order(self, place: int) -> None:
        last: dict[str, int] = {}
        seen: set[str] = set()
        for offset, value in sorted(self._final[place].items()):
            writer, _, number = value.partition(" ")
            if value not in self._sent[place]:
                self._note("phantom", f"{value!r} at offset {offset} of partition {place}")
                continue
            if value in seen:
                self.counts["repeated"] += 1
                if writer in self._clients.idempotent:
                    self._note("duplicate", f"{value} again at offset {offset} of partition {place}")
                continue
            seen.add(value)
            if int(number) < last.get(writer, -1) and writer in self._clients.idempotent:
                self._note(
                    "reordered", f"{value} after {last[writer]} at offset {offset} of partition {place}"
                )
            last[writer] = int(number)

    def _check_reader(self, reader: str, steps: Polls) -> None:
        position: dict[int, int] = {}
        for step, at, records in steps:
            if step == "place":
                for place, _, _ in records:
                    position.pop(place, None)
                continue
            seen: set[int] = set()
            for place, offset, value in records:
                self._check_record(reader, at, place, offset, value)
                expected = None if reader in self._clients.patient else position.get(place)
                where = f"{reader}, partition {place}: {offset} after {(expected or 0) - 1}"
                if expected is not None and offset < expected:
                    self._note("nonmonotonic-poll", where)
                elif expected is not None and self._holds_between(place, expected, offset):
                    self._note("internal-skip" if place in seen else "external-skip", where)
                position[place] = offset + 1
                seen.add(place)
        if reader in self._clients.to_end:
            for place, held in self._final.items():
                if held and place not in self._loose and position.get(place, 0) <= max(held):
                    where = f"partition {place} at {position.get(place, 0)}, it ends at {max(held)}"
                    self._note("unread", f"{reader} stopped in {where}")

    def _check_record(self, reader: str, at: float, place: int, offset: int, value: str) -> None:
        held = self._final[place].get(offset)
        if held != value and offset >= self._begins[place] and not self._is_lost_by_all(place, at):
            self._note("vanished", f"{reader} read {value} at {offset} of partition {place}: {held} is there")

    def _holds_between(self, place: int, begin: int, end: int) -> bool:
        held = self._final[place]
        return any(offset in held for offset in range(begin, end))

    def _check_group(self) -> None:
        if not self._clients.group:
            return
        given: dict[int, set[int]] = defaultdict(set)
        for reader in self._clients.group:
            for step, _, records in self._polls.get(reader, []):
                if step == "poll":
                    for place, offset, _ in records:
                        given[place].add(offset)
        for place, held in self._final.items():
            if place in self._loose:
                continue
            missing = sorted(offset for offset in held if offset not in given[place])
            skipped = [offset for offset in missing if offset < max(given[place], default=0)]
            if skipped:
                self._note("group-skip", f"partition {place}: {len(skipped)} records, from {skipped[0]} on")
            elif missing:
                self._note("unread", f"the group stopped in partition {place} at {missing[0]}")


def check(
    events: Iterable[Event], clients: Clients, loose: Container[int] = ()
) -> tuple[list[Anomaly], Counter[str]]:
    """Returns the violations in a history, and the number of events of each kind."""
    checker = Checker(clients, loose)
    checker.take(events)
    return checker.anomalies(), checker.counts
