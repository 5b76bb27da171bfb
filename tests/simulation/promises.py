"""What clients of a simulated cluster were told, and whether it may all be true.

The promises that are checked: a message acknowledged with ``acks=all`` is not lost as long as one in-sync
replica has what it had; no offset ever holds two messages that consumers saw; ends that a consumer is told do
not go back for it; an offset that a consumer may read from does not turn out of range; a consumer misses
nothing between two messages; the messages of an idempotent producer are there once, in its order; committed
positions of groups are found again; nobody leads in the epoch of another.

A partition whose in-sync replicas have all lost what they had not synced may forget: it is excused from then
on, and only has to work again. That is known from the states that the controller wrote.
"""

from __future__ import annotations

from typing import NamedTuple

from event_log import EventLog

Place = tuple[str, int]
"""Topic and partition."""


class Message(NamedTuple):
    """What a message says of itself: its producer, and which of the producer's messages it is."""

    producer: str
    number: int

    def __repr__(self) -> str:
        return f"{self.producer}:{self.number}"

    def encode(self) -> bytes:
        """As a record's value."""
        return f"{self.producer}:{self.number}".encode()

    @staticmethod
    def decode(value: bytes) -> Message:
        """From a record's value."""
        producer, _, number = value.decode().partition(":")
        return Message(producer, int(number))


class Replicated:
    """Which in-sync replicas of a partition still have all that they had."""

    def __init__(self) -> None:
        self.isr: tuple[int, ...] = ()
        self.whole: set[int] = set()

    def changed(self, isr: tuple[int, ...], losers: set[int]) -> None:
        """The controller wrote another in-sync set: who joins it has what the others have.

        Unless it lost its power between the fetch that showed so and this moment.
        """
        joined = {broker for broker in isr if broker not in self.isr and broker not in losers}
        self.whole = joined | {broker for broker in isr if broker in self.whole}
        self.isr = isr

    def lost(self, broker: int) -> None:
        """A broker's machine lost its power."""
        self.whole.discard(broker)


class Promises:
    """All that was told, by partition and offset."""

    def __init__(self, events: EventLog) -> None:
        self.events = events
        self.acknowledged_messages: dict[Place, dict[int, Message]] = {}
        """Acknowledged with acks=all."""
        self.visible: dict[Place, dict[int, Message]] = {}
        """Seen by a consumer."""
        self.replicated: dict[Place, Replicated] = {}
        self.excused: set[Place] = set()
        self._losers: set[int] = set()
        """Brokers that lost their power, and have not registered since."""
        self._ends: dict[tuple[str, Place], int] = {}
        self._leaders: dict[tuple[Place, bytes, int], int] = {}
        self._led_by: dict[Place, int] = {}
        self._commits: dict[tuple[str, Place], tuple[int, set[int]]] = {}

    # -- what the controller wrote, and what machines lost

    def state_written(self, place: Place, leader: int, isr: tuple[int, ...]) -> None:
        """The controller wrote a state."""
        self._led_by[place] = leader
        self.replicated.setdefault(place, Replicated()).changed(isr, self._losers)
        self._excuse_if_lost(place)

    def power_lost(self, broker: int) -> None:
        """A machine lost its power, and with it what was not synced."""
        self._losers.add(broker)
        for place, replicated in self.replicated.items():
            replicated.lost(broker)
            self._excuse_if_lost(place)

    def registered(self, broker: int) -> None:
        """A broker has told the controller that it is there, and what it may have lost."""
        self._losers.discard(broker)

    def may_lose_power(self, broker: int) -> bool:
        """Whether every partition has another in-sync replica that has everything."""
        return all(
            broker not in replicated.whole or len(replicated.whole) > 1
            for replicated in self.replicated.values()
        )

    def _excuse_if_lost(self, place: Place) -> None:
        if not self.replicated[place].whole and place not in self.excused:
            self.excused.add(place)
            self.events.count("partitions excused")
            self.events.add(f"all in-sync replicas of {place} have lost their power: it may forget")

    # -- what producers are told

    def acknowledged(self, place: Place, base_offset: int, messages: list[Message]) -> None:
        """A produce with acks=all was answered without an error."""
        self.events.count("messages acknowledged")
        promised = self.acknowledged_messages.setdefault(place, {})
        for offset, message in enumerate(messages, base_offset):
            self._agree(place, offset, message, promised, "another producer's message was acknowledged for")
            self._agree(place, offset, message, self.visible.get(place, {}), "a consumer has seen there")
            promised[offset] = message

    # -- what consumers are told

    def saw(self, place: Place, offset: int, message: Message) -> None:
        """A consumer was given a message."""
        visible = self.visible.setdefault(place, {})
        self._agree(place, offset, message, visible, "a consumer has seen there")
        self._agree(place, offset, message, self.acknowledged_messages.get(place, {}), "was acknowledged for")
        visible[offset] = message

    def _agree(
        self, place: Place, offset: int, message: Message, known: dict[int, Message], what: str
    ) -> None:
        other = known.get(offset)
        if other is not None and other != message and place not in self.excused:
            self.events.violate(f"{place} offset {offset} holds {message}, and {other} {what} it before")

    def skipped(self, consumer: str, place: Place, position: int, found: int) -> None:
        """A consumer asked for one offset, and was given a later one."""
        if place not in self.excused:
            self.events.violate(f"{consumer} asked {place} for offset {position}, and was given {found}")

    def end_told(self, consumer: str, place: Place, end: int, how: str) -> None:
        """A consumer was told where the partition ends for readers."""
        key = (consumer, place)
        before = self._ends.get(key, -1)
        if end < before and place not in self.excused:
            self.events.violate(f"{consumer} was told that {place} ends at {before}, and now {end} ({how})")
        self._ends[key] = max(before, end)

    def out_of_range(self, consumer: str, place: Place, position: int) -> None:
        """A position that a consumer had come to is refused."""
        if place not in self.excused:
            self.events.violate(f"{consumer} has read {place} up to {position}: that is out of range now")

    # -- what groups are told

    def commit_tried(self, group: str, place: Place, offset: int) -> None:
        """A commit is on its way: it may be found from now on."""
        last, tried = self._commits.get((group, place), (-1, set()))
        self._commits[group, place] = (last, tried | {offset})

    def commit_acknowledged(self, group: str, place: Place, offset: int) -> None:
        """A commit was answered without an error."""
        self._commits[group, place] = (offset, set())
        self.events.count("commits acknowledged")

    def committed_found(self, group: str, place: Place, offset: int, log_place: Place, broker: int) -> bool:
        """A group asked ``broker`` for its position. ``log_place`` is the partition that keeps it.

        Who leads that no more, and does not know, tells what was true when it did, as in Apache Kafka;
        nothing can be committed there. False: this was such a one.
        """
        if self._led_by.get(log_place) != broker:
            self.events.count("positions told by former coordinators")
            return False
        last, tried = self._commits.get((group, place), (-1, set()))
        if offset != last and offset not in tried and log_place not in self.excused:
            self.events.violate(
                f"group {group} committed {last} for {place} (tried: {sorted(tried)}), and finds {offset}"
            )
        return True

    # -- leaders

    def leads(self, place: Place, topic_id: bytes, epoch: int, broker: int) -> None:
        """A broker takes itself for the leader. Epochs begin anew where a topic is deleted and made again."""
        other = self._leaders.setdefault((place, topic_id, epoch), broker)
        if other != broker:
            self.events.violate(f"{place} is led by {other} and by {broker} in epoch {epoch}")

    # -- the end

    def check_log(self, place: Place, log: dict[int, Message], ordered: set[str]) -> None:
        """``log`` is all that a partition holds in the end; ``ordered`` are the idempotent producers."""
        if place in self.excused:
            return
        for what, known in (("acknowledged", self.acknowledged_messages), ("seen", self.visible)):
            for offset, message in known.get(place, {}).items():
                if log.get(offset) != message:
                    self.events.violate(
                        f"{message} was {what} at {place} offset {offset}, and in the end that holds"
                        f" {log.get(offset)} (the log has {len(log)} messages)"
                    )
                    return
        last: dict[str, Message] = {}
        for offset in sorted(log):
            message = log[offset]
            before = last.get(message.producer)
            if message.producer in ordered and before is not None and message.number <= before.number:
                self.events.violate(f"{place} holds {message} at offset {offset}, after {before}")
                return
            last[message.producer] = message
