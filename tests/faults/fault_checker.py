"""Whether a history is one that a log can have, in the manner of Jepsen's Kafka workload.

What the partitions hold at the end is the truth that all else is held against.

| anomaly | what it means |
|---|---|
| lost | an acknowledged message is not there |
| vanished | a reader saw a record that is not there any more, or is another |
| inconsistent-offset | an acknowledgement names an offset that holds something else |
| duplicate | an idempotent writer's message is there twice |
| reordered | an idempotent writer's messages are not in the order in which it wrote them |
| phantom | nobody wrote it |
| refused-but-there | a write that was refused for certain is there |
| hole | offsets are missing |
| nonmonotonic-poll | a reader went back without being told to |
| internal-skip | within one poll, records were left out |
| external-skip | between two polls, records were left out |
| group-back | a member began before what the group had committed |
| group-skip | no member of a group was given a record, though later ones were given |
| unread | a reader has stopped before the end |
| reset | a reader's offset was out of range |
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from fault_history import Event


class Anomaly(NamedTuple):
    """One thing that must not be."""

    kind: str
    text: str


class Readers(NamedTuple):
    """What is known of readers: which read everything to the end, and which belong to the group."""

    to_end: frozenset[str] = frozenset()
    group: frozenset[str] = frozenset()


class Checker:
    """Takes a history in, event by event."""

    def __init__(self, idempotent: Iterable[str], readers: Readers | None = None) -> None:
        """``idempotent``: the writers whose messages may be there only once."""
        self._idempotent = frozenset(idempotent)
        self._readers = readers or Readers()
        self._sent: dict[int, set[str]] = defaultdict(set)
        self._acked: list[tuple[int, int, str]] = []
        self._refused: list[tuple[int, str, str]] = []
        self._polls: dict[str, list[tuple[str, list[tuple[int, int, str]]]]] = defaultdict(list)
        """Of each reader ``("poll", records)``, ``("place", partitions)`` in order."""
        self._final: dict[int, dict[int, str]] = {}
        self._found: list[Anomaly] = []
        self.counts: Counter[str] = Counter()
        self._committed: dict[int, int] = {}
        self._floors: dict[tuple[str, int], int] = {}

    def take(self, events: Iterable[Event]) -> None:
        """Reads a history."""
        for event in events:
            self.counts[event["op"]] += 1
            take = getattr(self, f"_take_{event['op']}", None)
            if take is not None:
                take(event)

    def _take_send(self, event: Event) -> None:
        self._sent[event["p"]].add(f"{event['by']} {event['n']}")

    def _take_ack(self, event: Event) -> None:
        self._acked.append((event["p"], event["o"], f"{event['by']} {event['n']}"))

    def _take_fail(self, event: Event) -> None:
        if event["sure"]:
            self._refused.append((event["p"], f"{event['by']} {event['n']}", event["error"]))

    def _take_poll(self, event: Event) -> None:
        self.counts["records"] += len(event["m"])
        self._polls[event["by"]].append(("poll", [(p, o, v) for p, o, v in event["m"]]))
        if event["by"] in self._readers.group:
            self._check_begin(event)

    def _take_place(self, event: Event) -> None:
        self._polls[event["by"]].append(("place", [(p, -1, "") for p in event["p"]]))
        for place in event["p"]:
            self._floors[event["by"], place] = self._committed.get(place, 0)

    def _check_begin(self, event: Event) -> None:
        """The first record after an assignment is not before what was committed when it was made."""
        for place, offset, _ in event["m"]:
            floor = self._floors.pop((event["by"], place), None)
            if floor is not None and offset < floor:
                self._note(
                    "group-back",
                    f"{event['by']} began partition {place} at {offset}, {floor} was committed",
                )

    def _take_commit(self, event: Event) -> None:
        place, offset = event["p"], event["o"]
        self._committed[place] = max(self._committed.get(place, 0), offset)

    def _take_reset(self, event: Event) -> None:
        self._note("reset", f"{event['by']}, partition {event['p']} at {event['at']}: {event['error']}")

    def _take_final(self, event: Event) -> None:
        self._final[event["p"]] = dict(event["m"])
        offsets = [offset for offset, _ in event["m"]]
        if offsets != list(range(len(offsets))):
            missing = sorted(set(range(max(offsets) + 1)) - set(offsets))[:5]
            self._note("hole", f"partition {event['p']} has {len(offsets)} records, missing are {missing}")

    def _note(self, kind: str, text: str) -> None:
        self._found.append(Anomaly(kind, text))

    # The verdict

    def anomalies(self) -> list[Anomaly]:
        """What must not be; to be called once, after the history."""
        if not self._final:
            self._note("unread", "the partitions were not read at the end")
            return self._found
        values = {place: Counter(held.values()) for place, held in self._final.items()}
        for place, offset, value in self._acked:
            self._check_acknowledged(place, offset, value, values[place])
        for place, value, error in self._refused:
            if values[place][value]:
                self._note("refused-but-there", f"{value} in partition {place}: {error}")
        for place in self._final:
            self._check_order(place)
        for reader, steps in self._polls.items():
            self._check_reader(reader, steps)
        self._check_group()
        return self._found

    def _check_acknowledged(self, place: int, offset: int, value: str, values: Counter[str]) -> None:
        if not values[value]:
            self._note("lost", f"{value} of partition {place}, acknowledged at {offset}")
        elif offset >= 0 and self._final[place].get(offset) != value:
            held = self._final[place].get(offset)
            self._note("inconsistent-offset", f"{value} of partition {place} at {offset}: {held} is there")

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
                if writer in self._idempotent:
                    self._note("duplicate", f"{value} again at offset {offset} of partition {place}")
                continue
            seen.add(value)
            if int(number) < last.get(writer, -1) and writer in self._idempotent:
                self._note(
                    "reordered", f"{value} after {last[writer]} at offset {offset} of partition {place}"
                )
            last[writer] = int(number)

    def _check_reader(self, reader: str, steps: list[tuple[str, list[tuple[int, int, str]]]]) -> None:
        position: dict[int, int] = {}
        for step, records in steps:
            if step == "place":
                for place, _, _ in records:
                    position.pop(place, None)
                continue
            seen: set[int] = set()
            for place, offset, value in records:
                self._check_record(reader, place, offset, value)
                expected = position.get(place)
                where = f"{reader}, partition {place}: {offset} after {(expected or 0) - 1}"
                if expected is not None and offset < expected:
                    self._note("nonmonotonic-poll", where)
                elif expected is not None and self._holds_between(place, expected, offset):
                    self._note("internal-skip" if place in seen else "external-skip", where)
                position[place] = offset + 1
                seen.add(place)
        if reader in self._readers.to_end:
            for place, held in self._final.items():
                if held and position.get(place, 0) <= max(held):
                    where = f"partition {place} at {position.get(place, 0)}, it ends at {max(held)}"
                    self._note("unread", f"{reader} stopped in {where}")

    def _check_record(self, reader: str, place: int, offset: int, value: str) -> None:
        held = self._final[place].get(offset)
        if held != value:
            self._note("vanished", f"{reader} read {value} at {offset} of partition {place}: {held} is there")

    def _holds_between(self, place: int, begin: int, end: int) -> bool:
        held = self._final[place]
        return any(offset in held for offset in range(begin, end))

    def _check_group(self) -> None:
        if not self._readers.group:
            return
        given: dict[int, set[int]] = defaultdict(set)
        for reader in self._readers.group:
            for step, records in self._polls.get(reader, []):
                if step == "poll":
                    for place, offset, _ in records:
                        given[place].add(offset)
        for place, held in self._final.items():
            missing = sorted(offset for offset in held if offset not in given[place])
            skipped = [offset for offset in missing if offset < max(given[place], default=0)]
            if skipped:
                self._note("group-skip", f"partition {place}: {len(skipped)} records, from {skipped[0]} on")
            elif missing:
                self._note("unread", f"the group stopped in partition {place} at {missing[0]}")


def check(
    events: Iterable[Event], idempotent: Iterable[str], readers: Readers | None = None
) -> tuple[list[Anomaly], Counter[str]]:
    """The anomalies of a history, and how many events of each kind it has."""
    checker = Checker(idempotent, readers)
    checker.take(events)
    return checker.anomalies(), checker.counts
