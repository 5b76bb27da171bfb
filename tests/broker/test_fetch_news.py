"""Fetch sessions that look at what happened, beside ones that look at everything: they answer the same.

Two brokers live through the same history. Before every step the second one is told that every partition of
every session has news, so that each of its fetches walks all of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from paths_bench import IDS, NODE, AtOnceExecutor, Bench, Client, batch, bench_in, parts_of, topic_name

from tidemill.broker.fetch import FetchRequest
from tidemill.broker.fetch_sessions import EVICT_AFTER_MS
from tidemill.broker.throttling import LeaderThrottle
from tidemill.log.aborted import AbortedTransactions
from tidemill.model.errors import KafkaError
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_end_marker
from tidemill.replication.partition import Partition
from tidemill.replication.throttle import UNLIMITED, RateLimit
from tidemill.wire.messages.fetch import FetchPartition, ReplicaState

REPLICAS = (NODE, 2, 3)
LAG_MS = 1000
LONG_MS = 60_000
READERS = {"a": (11, -1), "b": (13, -1), "two": (15, 2), "three": (17, 3)}
"""Version, and the broker that reads: -1 for a consumer; ``b`` reads what transactions committed."""
KEYS = [("t", 0), ("t", 1), ("t", 2), ("u", 0)]

HONEST = {"wait_ms": LONG_MS, "bytes_min": 1, "bytes_max": 1 << 20, "part_bytes": 1000, "isolation": 0}

keys = st.sampled_from(KEYS)
readers = st.sampled_from(sorted(READERS))
where = st.one_of(st.just("next"), st.just("next"), st.just("end"), st.integers(0, 6))
"""The offset that is asked for: behind what was read last, at the end of the log, or any other."""


class Side:
    """A broker, and those who read from it."""

    def __init__(self, directory: Path, looks_at_all: bool) -> None:
        self.bench = Bench(directory, AtOnceExecutor(), sessions_max=3)
        self.bench.fetches.aborted = AbortedTransactions(self.bench.logs.files)
        self.throttle = LeaderThrottle(NODE, RateLimit(sample_s=1e6))
        self.throttle.set_topic("t", ["*"])
        self.bench.fetches.throttle = self.throttle
        self.looks_at_all = looks_at_all
        self.sequences: dict[tuple[str, int], int] = {}
        self.wanted: list[tuple[str, int, tuple[int, ...], int]] = []
        self.bench.manager.change_isr = self.isr_wanted
        self.clients: dict[str, Client] = {name: self.bench.client() for name in READERS}
        self.sessions = dict.fromkeys(READERS, 0)
        self.epochs = dict.fromkeys(READERS, 0)
        self.next: dict[tuple[str, str, int], int] = {}
        """Behind what was read last, by reader and partition."""
        self.named: dict[tuple[str, str, int], int] = {}
        """The offset that the session was told last."""
        for topic, _ in (("t", 3), ("u", 1)):
            self.lead(topic)

    def isr_wanted(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        self.wanted.append((partition.topic, int(partition.index), isr, partition_epoch))

    def lead(self, topic: str) -> None:
        for key in KEYS:
            if key[0] == topic:
                one = self.bench.partition(*key)
                one.lag_ms_max = LAG_MS
                isr = (NODE,) if topic == "u" else REPLICAS
                one.become(NODE, 1, REPLICAS, isr, 0, self.bench.clock.now_ms)

    def look_at_all(self) -> None:
        if self.looks_at_all:
            for session in self.bench.sessions.sessions.values():
                for part in session.parts.values():
                    session.add_news(part)

    def waits(self, name: str) -> bool:
        return self.clients[name].connection.state is not None

    def fetch(self, name: str, named: Any, forgotten: Any, begin: bool, fields: dict[str, Any]) -> None:
        version, broker = READERS[name]
        parts = {}
        for key, (place, epochs) in named.items():
            log = self.bench.partition(*key).log
            offset = place
            if place == "next":
                offset = self.next.get((name, *key), 0)
            elif place == "end":
                offset = int(log.end_offset)
            self.named[(name, *key)] = self.next[(name, *key)] = offset
            parts[key] = FetchPartition(
                fetch_offset=offset,
                partition_max_bytes=fields["part_bytes"],
                current_leader_epoch=int(self.bench.partition(*key).leader_epoch) if epochs else -1,
                last_fetched_epoch=log.leader_epochs.latest if epochs and version >= 12 else -1,
            )
        if broker >= 0:
            who = {"replica_state": ReplicaState(replica_id=broker, replica_epoch=1)}
        else:
            who = {"isolation_level": max(fields["isolation"], name == "b")}
        if begin:
            self.epochs[name] = 0
        self.clients[name].fetch(
            version,
            parts,
            forgotten=forgotten,
            session_id=self.sessions[name],
            session_epoch=self.epochs[name],
            max_wait_ms=fields["wait_ms"],
            min_bytes=fields["bytes_min"],
            max_bytes=fields["bytes_max"],
            **who,
        )

    def go_on(self, name: str) -> None:
        """The reader asks as an honest one does: it begins a session, and names what it read since."""
        begin = self.sessions[name] == 0
        named = {
            key: ("next", True)
            for key in KEYS
            if begin or self.next.get((name, *key), 0) != self.named.get((name, *key), 0)
        }
        self.fetch(name, named, [], begin, HONEST)

    def take(self) -> list[Any]:
        """All answers that came since the last time, as plain values."""
        for _ in range(4):
            self.bench.turn(0)
        taken = []
        for name, client in self.clients.items():
            while client.has_answer():
                response = client.fetched(READERS[name][0])
                if response.error_code != 0:
                    self.sessions[name] = self.epochs[name] = 0
                else:
                    self.sessions[name] = response.session_id
                    self.epochs[name] += response.session_id != 0
                told = [
                    (topic_name(topic), part.partition_index, vars_of(part))
                    for topic in response.responses
                    for part in topic.partitions
                ]
                for topic, index, part in told:
                    if part["records"]:
                        end = parse_end(part["records"])
                        self.next[name, topic, index] = end
                taken.append((name, response.error_code, response.session_id != 0, told))
        return taken

    def facts(self) -> list[Any]:
        """What the history has brought about."""
        facts: list[Any] = [len(self.bench.sessions.sessions), int(self.bench.sessions.parts), self.wanted]
        facts.append([name for name in READERS if self.waits(name)])
        for key in KEYS:
            one = self.bench.partition(*key)
            end = int(one.log.end_offset)
            facts.append((key, int(one.high_watermark), end, one.isr))
            if one.replication is not None:
                for broker, follower in one.replication.followers.items():
                    facts.append((broker, int(follower.end_offset)))
                    if follower.end_offset != end:
                        # Who has everything is caught up, whenever that was noted.
                        facts.append(int(follower.caught_up_ms))
        return facts


def vars_of(part: Any) -> dict[str, Any]:
    fields = (
        "error_code",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "preferred_read_replica",
    )
    found = {name: getattr(part, name) for name in fields}
    diverging = part.diverging_epoch
    return {
        **found,
        "diverging": (diverging.epoch, diverging.end_offset),
        "aborted": [(one.producer_id, one.first_offset) for one in part.aborted_transactions or ()],
        "records": bytes(part.records or b""),
    }


def parse_end(records: bytes) -> int:
    end, position = 0, 0
    while position + 61 <= len(records):
        size = 12 + int.from_bytes(records[position + 8 : position + 12], "big")
        if position + size > len(records):
            break
        one = parse_batch(records, position, position + size)
        end, position = int(one.base_offset + one.record_count), position + size
    return end


class History(RuleBasedStateMachine):
    """Steps that both brokers take."""

    @initialize()
    def start(self) -> None:
        self.directory = TemporaryDirectory()
        root = Path(self.directory.name)
        (root / "news").mkdir()
        (root / "all").mkdir()
        self.sides = [Side(root / "news", False), Side(root / "all", True)]
        for name in ("b", "two", "three"):
            self.step(lambda side, name=name: side.go_on(name))  # type: ignore[misc]

    def teardown(self) -> None:
        if hasattr(self, "sides"):
            for side in self.sides:
                side.bench.close()
            self.directory.cleanup()

    def step(self, do: Callable[[Side], None]) -> None:
        taken = []
        for side in self.sides:
            side.look_at_all()
            do(side)
            side.look_at_all()
            taken.append(side.take())
        assert taken[0] == taken[1]

    @invariant()
    def both_are_the_same(self) -> None:
        if hasattr(self, "sides"):
            assert self.sides[0].facts() == self.sides[1].facts()

    @rule(
        name=readers,
        named=st.dictionaries(keys, st.tuples(where, st.booleans()), max_size=4),
        forgotten=st.lists(keys, max_size=1),
        begin=st.sampled_from([False, False, False, True]),
        wait_ms=st.sampled_from([0, LONG_MS, LONG_MS]),
        bytes_min=st.sampled_from([0, 1, 1, 500]),
        bytes_max=st.sampled_from([1, 300, 1 << 20]),
        part_bytes=st.sampled_from([100, 1 << 20]),
        isolation=st.sampled_from([0, 0, 0, 1]),
    )
    def fetch(self, name: str, named: Any, forgotten: Any, begin: bool, **fields: Any) -> None:
        if not self.sides[0].waits(name):
            self.step(lambda side: side.fetch(name, named, forgotten, begin, fields))

    @rule(names=st.lists(readers, min_size=1, max_size=6))
    def go_on(self, names: list[str]) -> None:
        """Honest readers ask, and again when their wait is over."""
        for name in names:
            if self.sides[0].waits(name):
                self.end_of_waiting(name)
            if not self.sides[0].waits(name):
                self.step(lambda side, name=name: side.go_on(name))  # type: ignore[misc]

    @rule()
    def catch_up(self) -> None:
        """All read what there is, and are told that it is committed."""
        self.go_on(["two", "three", "two", "three", "a", "b"])
        self.go_on(["a", "b"])

    @rule(name=readers)
    def end_of_waiting(self, name: str) -> None:
        def do(side: Side) -> None:
            request = side.clients[name].connection.state
            if isinstance(request, FetchRequest):
                request.on_deadline()

        self.step(do)

    @rule(name=readers)
    def come_back(self, name: str) -> None:
        """The connection breaks; the session goes on over another one."""

        def do(side: Side) -> None:
            side.clients[name].close()
            side.bench.turn(0)
            side.bench.turn(0)
            side.clients[name] = side.bench.client()

        self.step(do)

    @rule(key=keys, size=st.sampled_from([1, 200]), count=st.integers(1, 2))
    def append(self, key: tuple[str, int], size: int, count: int) -> None:
        def do(side: Side) -> None:
            one = side.bench.partition(*key)
            data = batch(*[b"v" * size] * count)
            if one.is_leader:
                one.append([parse_batch(data, 0, len(data))], 1, side.bench.clock.now_ms)
            else:
                end = int(one.log.end_offset)
                data = batch(b"v" * size, base_offset=end, leader_epoch=int(one.leader_epoch))
                one.append_from_leader(data, end + 1 - size % 2, 0, side.bench.clock.now_ms)

        self.step(do)

    @rule(key=keys, ends=st.sampled_from([None, None, False, True]))
    def write_in_transaction(self, key: tuple[str, int], ends: bool | None) -> None:
        """One producer for each partition writes, or ends its transaction (True: commits)."""

        def do(side: Side) -> None:
            one = side.bench.partition(*key)
            now_ms = side.bench.clock.now_ms
            sequence = side.sequences.get(key, 0)
            data = batch(
                b"t" * 50, producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True
            )
            if ends is not None:
                data = build_end_marker(ends, now_ms, 7, 0, 0)
            # After other leaders, and what they cut, the log may know another sequence.
            with contextlib.suppress(KafkaError):
                one.append([parse_batch(data, 0, len(data))], 1, now_ms)
                side.sequences[key] = sequence + (ends is None)

        self.step(do)

    @rule(key=keys, isr=st.sampled_from([(1,), (1, 2), (1, 3), REPLICAS]), new=st.booleans())
    def become(self, key: tuple[str, int], isr: tuple[int, ...], new: bool) -> None:
        def do(side: Side) -> None:
            one = side.bench.partition(*key)
            epoch = int(one.leader_epoch) + (new or one.leader != NODE)
            one.become(NODE, epoch, REPLICAS, isr, int(one.partition_epoch) + 1, side.bench.clock.now_ms)

        self.step(do)

    @rule(key=keys, cut=st.integers(0, 2))
    def led_elsewhere(self, key: tuple[str, int], cut: int) -> None:
        def do(side: Side) -> None:
            one = side.bench.partition(*key)
            now_ms = side.bench.clock.now_ms
            one.become(2, int(one.leader_epoch) + 1, REPLICAS, (1, 2), int(one.partition_epoch) + 1, now_ms)
            one.truncate_to(max(int(one.log.end_offset) - cut, int(one.log.start_offset)), now_ms)

        self.step(do)

    @rule(granted=st.booleans())
    def isr_decided(self, granted: bool) -> None:
        def do(side: Side) -> None:
            now_ms = side.bench.clock.now_ms
            for topic, index, isr, partition_epoch in side.wanted:
                one = side.bench.partition(topic, index)
                if granted and one.is_leader and one.partition_epoch == partition_epoch:
                    one.become(NODE, int(one.leader_epoch), REPLICAS, isr, partition_epoch + 1, now_ms)
                else:
                    one.isr_refused(now_ms)
            side.wanted.clear()

        self.step(do)

    @rule(held=st.booleans())
    def throttle(self, held: bool) -> None:
        """From the next bytes on followers get no more of one topic unless they are in sync; or they do."""

        def do(side: Side) -> None:
            side.throttle.limit.bytes_per_second = 0 if held else UNLIMITED

        self.step(do)

    @rule(key=keys, share=st.sampled_from([0.5, 1.0]))
    def advance_start(self, key: tuple[str, int], share: float) -> None:
        def do(side: Side) -> None:
            one = side.bench.partition(*key)
            one.advance_start(int(int(one.high_watermark) * share))

        self.step(do)

    @rule(topic=st.sampled_from(["t", "u"]))
    def make_anew(self, topic: str) -> None:
        def do(side: Side) -> None:
            list(side.bench.manager.removing(topic, IDS[topic]))
            side.sequences = {key: at for key, at in side.sequences.items() if key[0] != topic}
            side.bench.put(topic, 3 if topic == "t" else 1)
            side.lead(topic)

        self.step(do)

    @rule(ms=st.sampled_from([1, LAG_MS // 2, LAG_MS + 1, EVICT_AFTER_MS]))
    def time_passes(self, ms: int) -> None:
        def do(side: Side) -> None:
            side.bench.clock.now_ms += ms
            for key in KEYS:
                side.bench.partition(*key).drop_lagging(side.bench.clock.now_ms)

        self.step(do)


@pytest.mark.slow
def test_a_fetch_that_looks_at_what_happened_answers_as_one_that_looks_at_everything() -> None:
    run_state_machine_as_test(
        History,
        settings=settings(
            max_examples=30,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Two topics and what serves them."""
    with bench_in(tmp_path) as one:
        yield one


def waiters(bench: Bench) -> int:
    return sum(bench.partition(*key).waiting_fetches for key in KEYS)


def test_what_a_client_knows_is_not_looked_at_again(bench: Bench) -> None:
    client, writer = bench.client(), bench.client()
    client.fetch(11, dict.fromkeys(KEYS, 0), session_epoch=0)
    number = client.fetched(11).session_id
    (session,) = bench.sessions.sessions.values()
    assert len(session.news) == 0
    assert waiters(bench) == len(KEYS)
    client.fetch(11, {}, session_id=number, session_epoch=1, max_wait_ms=LONG_MS)
    bench.until(lambda: bench.fetches.waiting == 1)
    writer.append(b"a")
    assert list(parts_of(client.fetched(11))) == [("t", 0)]
    assert [int(part.index) for part in session.news] == [0]
    # It keeps its news until the client has moved on.
    client.fetch(11, {("t", 0): 1}, session_id=number, session_epoch=2)
    assert parts_of(client.fetched(11)) == {}
    assert len(session.news) == 0


def test_a_client_that_does_not_come_back_costs_an_append_once(bench: Bench) -> None:
    client, writer = bench.client(), bench.client()
    client.fetch(11, dict.fromkeys(KEYS, 0), session_epoch=0)
    number = client.fetched(11).session_id
    writer.append(b"a")
    assert bench.partition().waiting_fetches == 0
    assert waiters(bench) == len(KEYS) - 1
    client.fetch(11, {("t", 0): 1}, forgotten=[("u", 0)], session_id=number, session_epoch=1)
    assert list(parts_of(client.fetched(11))) == [("t", 0)]  # its high watermark
    assert bench.partition().waiting_fetches == 1
    assert bench.partition("u").waiting_fetches == 0


def test_a_session_that_ends_lets_go_of_its_partitions_once_nobody_waits(bench: Bench) -> None:
    client, other, writer = bench.client(), bench.client(), bench.client()
    client.fetch(11, dict.fromkeys(KEYS, 0), session_epoch=0)
    number = client.fetched(11).session_id
    client.fetch(11, {}, session_id=number, session_epoch=1, max_wait_ms=LONG_MS)
    bench.until(lambda: bench.fetches.waiting == 1)
    other.fetch(11, {}, session_id=number, session_epoch=-1)
    assert other.fetched(11).session_id == 0
    assert bench.sessions.sessions == {}
    writer.append(b"a")
    assert list(parts_of(client.fetched(11))) == [("t", 0)]
    assert waiters(bench) == 0


def test_a_follower_that_waits_for_another_one_is_noted_with_every_fetch(bench: Bench) -> None:
    """What is not committed may become so by the time that passes: each fetch looks whether it has."""
    partition = bench.partition()
    partition.lag_ms_max = LAG_MS
    partition.become(NODE, 1, REPLICAS, (NODE, 2), 0, bench.clock.now_ms)
    partition.fetched_by(3, 0, 0, bench.clock.now_ms)  # caught up, but not in the set
    follower = bench.client()
    who = {"replica_state": ReplicaState(replica_id=2, replica_epoch=1)}
    follower.fetch(15, {("t", 0): 0}, session_epoch=0, **who)
    number = follower.fetched(15).session_id
    data = batch(b"a")
    partition.append([parse_batch(data, 0, len(data))], 1, bench.clock.now_ms)
    follower.fetch(15, {("t", 0): 1}, session_id=number, session_epoch=1, **who)
    assert parts_of(follower.fetched(15)) == {}
    assert partition.high_watermark == 0
    bench.clock.now_ms += LAG_MS + 1
    follower.fetch(15, {}, session_id=number, session_epoch=2, **who)
    assert parts_of(follower.fetched(15))["t", 0].high_watermark == 1


@pytest.mark.parametrize("leaves", ["appended", "forgotten", "session ends"])
def test_when_a_follower_was_caught_up_is_known_however_long_nothing_happened(
    bench: Bench, leaves: str
) -> None:
    partition = bench.partition()
    partition.lag_ms_max = LAG_MS
    partition.become(NODE, 1, REPLICAS, (NODE, 2), 0, bench.clock.now_ms)
    changes: list[Any] = []
    bench.manager.change_isr = lambda *change: changes.append(change[1])
    follower = bench.client()
    who = {"replica_state": ReplicaState(replica_id=2, replica_epoch=1)}
    follower.fetch(15, {("t", 0): 0, ("t", 1): 0}, session_epoch=0, **who)
    number = follower.fetched(15).session_id
    for epoch in range(1, 6):
        bench.clock.now_ms += LAG_MS
        follower.fetch(15, {}, session_id=number, session_epoch=epoch, **who)
        follower.fetched(15)
    bench.clock.now_ms += LAG_MS
    gone = [("t", 0)] if leaves == "forgotten" else []
    if leaves != "appended":
        epoch = -1 if leaves == "session ends" else 6
        follower.fetch(15, {}, forgotten=gone, session_id=number, session_epoch=epoch, **who)
        follower.fetched(15)
    data = batch(b"a")
    partition.append([parse_batch(data, 0, len(data))], 1, bench.clock.now_ms)
    partition.drop_lagging(bench.clock.now_ms)
    assert changes == []
    partition.drop_lagging(bench.clock.now_ms + 1)
    assert changes == [(NODE,)]
