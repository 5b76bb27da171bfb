"""Fetch sessions that look up changed partitions respond as sessions that look up all partitions.

Two brokers execute the same history. Before every step all partitions of all sessions of the second broker
are marked as changed, so that each of its fetches looks up all of them.
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

from tidemill.broker.fetch_session import EVICT_AFTER_MS
from tidemill.model.errors import KafkaError
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_end_marker
from tidemill.replication.partition import Partition
from tidemill.replication.replication_quota import UNLIMITED, RateLimit, ReplicationQuota
from tidemill.wire.messages.fetch import FetchPartition, ReplicaState

REPLICAS = (NODE, 2, 3)
LAG_MS = 1000
LONG_MS = 60_000
READERS = {"a": (11, -1), "b": (13, -1), "two": (15, 2), "three": (17, 3)}
"""Version and replica id: -1 for a consumer. ``b`` has the isolation level READ_COMMITTED."""
KEYS = [("t", 0), ("t", 1), ("t", 2), ("u", 0)]

HONEST = {"wait_ms": LONG_MS, "bytes_min": 1, "bytes_max": 1 << 20, "part_bytes": 1000, "isolation": 0}

keys = st.sampled_from(KEYS)
readers = st.sampled_from(sorted(READERS))
where = st.one_of(st.just("next"), st.just("next"), st.just("end"), st.integers(0, 6))
"""The fetch offset: after the last record read, at the log end, or any other."""


class Side:
    """A broker and its readers."""

    def __init__(self, directory: Path, looks_at_all: bool) -> None:
        self.bench = Bench(directory, AtOnceExecutor(), sessions_max=3)
        self.throttle = ReplicationQuota(NODE, RateLimit(sample_s=1e6))
        self.throttle.set_topic("t", ["*"])
        self.bench.fetches.reader.quota = self.throttle
        self.looks_at_all = looks_at_all
        self.sequences: dict[tuple[str, int], int] = {}
        self.wanted: list[tuple[str, int, tuple[int, ...], int]] = []
        self.bench.manager.listener.alter_isr = self.isr_requested
        self.clients: dict[str, Client] = {name: self.bench.client() for name in READERS}
        self.sessions = dict.fromkeys(READERS, 0)
        self.epochs = dict.fromkeys(READERS, 0)
        self.next: dict[tuple[str, str, int], int] = {}
        """The next offset, by reader and partition."""
        self.named: dict[tuple[str, str, int], int] = {}
        """The last fetch offset in the session."""
        for topic, _ in (("t", 3), ("u", 1)):
            self.lead(topic)

    def isr_requested(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        self.wanted.append((partition.topic, int(partition.index), isr, partition_epoch))

    def lead(self, topic: str) -> None:
        for key in KEYS:
            if key[0] == topic:
                one = self.bench.partition(*key)
                one.events.lag_ms_max = LAG_MS
                isr = (NODE,) if topic == "u" else REPLICAS
                one.apply_state(NODE, 1, REPLICAS, isr, partition_epoch=0, now_ms=self.bench.clock.now_ms)

    def look_at_all(self) -> None:
        if self.looks_at_all:
            for session in self.bench.sessions.sessions.values():
                for partition in session.partitions.values():
                    session.mark_changed(partition)

    def waits(self, name: str) -> bool:
        return self.clients[name].connection in self.bench.fetches.delayed

    def fetch(self, name: str, named: Any, forgotten: Any, begin: bool, fields: dict[str, Any]) -> None:
        version, broker = READERS[name]
        parts = {}
        for key, (position, epochs) in named.items():
            log = self.bench.partition(*key).log
            offset = position
            if position == "next":
                offset = self.next.get((name, *key), 0)
            elif position == "end":
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

    def fetch_next(self, name: str) -> None:
        """Sends the next fetch of a correct reader, which names the partitions that it has read."""
        begin = self.sessions[name] == 0
        named = {
            key: ("next", True)
            for key in KEYS
            if begin or self.next.get((name, *key), 0) != self.named.get((name, *key), 0)
        }
        self.fetch(name, named, [], begin, HONEST)

    def responses(self) -> list[Any]:
        """Returns all responses since the last call, as plain values."""
        for _ in range(4):
            self.bench.turn(0)
        responses = []
        for name, client in self.clients.items():
            while client.has_answer():
                response = client.fetched(READERS[name][0])
                if response.error_code != 0:
                    self.sessions[name] = self.epochs[name] = 0
                else:
                    self.sessions[name] = response.session_id
                    self.epochs[name] += response.session_id != 0
                sent = [
                    (topic_name(topic), part.partition_index, vars_of(part))
                    for topic in response.responses
                    for part in topic.partitions
                ]
                for topic, index, part in sent:
                    if part["records"]:
                        end = parse_end(part["records"])
                        self.next[name, topic, index] = end
                responses.append((name, response.error_code, response.session_id != 0, sent))
        return responses

    def facts(self) -> list[Any]:
        """Returns the state after the history."""
        facts: list[Any] = [
            len(self.bench.sessions.sessions),
            int(self.bench.sessions.partition_count),
            self.wanted,
        ]
        facts.append([name for name in READERS if self.waits(name)])
        for key in KEYS:
            one = self.bench.partition(*key)
            end = int(one.log.end_offset)
            facts.append((key, int(one.high_watermark), end, one.isr))
            if one.replication is not None:
                for broker, follower in one.replication.followers.items():
                    facts.append((broker, int(follower.end_offset)))
                    if follower.end_offset != end:
                        # A follower at the log end is caught up, whatever the recorded time is.
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
    """The steps of both brokers."""

    @initialize()
    def start(self) -> None:
        self.directory = TemporaryDirectory()
        root = Path(self.directory.name)
        (root / "news").mkdir()
        (root / "all").mkdir()
        self.sides = [Side(root / "news", False), Side(root / "all", True)]
        for name in ("b", "two", "three"):
            self.step(lambda side, name=name: side.fetch_next(name))  # type: ignore[misc]

    def teardown(self) -> None:
        if hasattr(self, "sides"):
            for side in self.sides:
                side.bench.close()
            self.directory.cleanup()

    def step(self, do: Callable[[Side], None]) -> None:
        responses = []
        for side in self.sides:
            side.look_at_all()
            do(side)
            side.look_at_all()
            responses.append(side.responses())
        assert responses[0] == responses[1]

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
    def fetch_next(self, names: list[str]) -> None:
        """All readers fetch, and again at their deadline."""
        for name in names:
            if self.sides[0].waits(name):
                self.end_of_waiting(name)
            if not self.sides[0].waits(name):
                self.step(lambda side, name=name: side.fetch_next(name))  # type: ignore[misc]

    @rule()
    def catch_up(self) -> None:
        """All readers fetch up to the log end, and get the high watermark."""
        self.fetch_next(["two", "three", "two", "three", "a", "b"])
        self.fetch_next(["a", "b"])

    @rule(name=readers)
    def end_of_waiting(self, name: str) -> None:
        def do(side: Side) -> None:
            fetch = side.bench.fetches.delayed.get(side.clients[name].connection)
            if fetch is not None:
                fetch.on_expiration()

        self.step(do)

    @rule(name=readers)
    def reconnect(self, name: str) -> None:
        """The connection breaks, and the session continues over another one."""

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
                one.append(parse_batch(data, 0, len(data)), 1, side.bench.clock.now_ms)
            else:
                end = int(one.log.end_offset)
                data = batch(b"v" * size, base_offset=end, leader_epoch=int(one.leader_epoch))
                one.append_from_leader(data, end + 1 - size % 2, 0, side.bench.clock.now_ms)

        self.step(do)

    @rule(key=keys, ends=st.sampled_from([None, None, False, True]))
    def write_in_transaction(self, key: tuple[str, int], ends: bool | None) -> None:
        """The producer of a partition writes, or ends its transaction (True: commits)."""

        def do(side: Side) -> None:
            one = side.bench.partition(*key)
            now_ms = side.bench.clock.now_ms
            sequence = side.sequences.get(key, 0)
            data = batch(
                b"t" * 50, producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True
            )
            if ends is not None:
                data = build_end_marker(ends, now_ms, 7, 0, 0)
            # After a truncation by another leader the log may expect another sequence.
            with contextlib.suppress(KafkaError):
                one.append(parse_batch(data, 0, len(data)), 1, now_ms)
                side.sequences[key] = sequence + (ends is None)

        self.step(do)

    @rule(key=keys, isr=st.sampled_from([(1,), (1, 2), (1, 3), REPLICAS]), new=st.booleans())
    def become(self, key: tuple[str, int], isr: tuple[int, ...], new: bool) -> None:
        def do(side: Side) -> None:
            one = side.bench.partition(*key)
            epoch = int(one.leader_epoch) + (new or one.leader != NODE)
            one.apply_state(
                NODE,
                epoch,
                REPLICAS,
                isr,
                partition_epoch=int(one.partition_epoch) + 1,
                now_ms=side.bench.clock.now_ms,
            )

        self.step(do)

    @rule(key=keys, cut=st.integers(0, 2))
    def led_elsewhere(self, key: tuple[str, int], cut: int) -> None:
        def do(side: Side) -> None:
            one = side.bench.partition(*key)
            now_ms = side.bench.clock.now_ms
            one.apply_state(
                2,
                int(one.leader_epoch) + 1,
                REPLICAS,
                (1, 2),
                partition_epoch=int(one.partition_epoch) + 1,
                now_ms=now_ms,
            )
            one.truncate_to(max(int(one.log.end_offset) - cut, int(one.log.start_offset)), now_ms)

        self.step(do)

    @rule(granted=st.booleans())
    def isr_decided(self, granted: bool) -> None:
        def do(side: Side) -> None:
            now_ms = side.bench.clock.now_ms
            for topic, index, isr, partition_epoch in side.wanted:
                one = side.bench.partition(topic, index)
                if granted and one.is_leader and one.partition_epoch == partition_epoch:
                    one.apply_state(
                        NODE,
                        int(one.leader_epoch),
                        REPLICAS,
                        isr,
                        partition_epoch=partition_epoch + 1,
                        now_ms=now_ms,
                    )
                else:
                    one.isr_refused(now_ms)
            side.wanted.clear()

        self.step(do)

    @rule(held=st.booleans())
    def throttle(self, held: bool) -> None:
        """Sets or removes a quota, which the next bytes exceed, for the followers of one topic."""

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
    def recreate(self, topic: str) -> None:
        def do(side: Side) -> None:
            list(side.bench.manager.deleting(topic, IDS[topic]))
            side.sequences = {key: at for key, at in side.sequences.items() if key[0] != topic}
            side.bench.put(topic, 3 if topic == "t" else 1)
            side.lead(topic)

        self.step(do)

    @rule(ms=st.sampled_from([1, LAG_MS // 2, LAG_MS + 1, EVICT_AFTER_MS]))
    def time_passes(self, ms: int) -> None:
        def do(side: Side) -> None:
            side.bench.clock.now_ms += ms
            for key in KEYS:
                side.bench.partition(*key).maybe_shrink_isr(side.bench.clock.now_ms)

        self.step(do)


@pytest.mark.slow
def test_a_session_with_changes_only_responds_as_one_that_looks_up_everything() -> None:
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
    """Two topics, and the handlers for them."""
    with bench_in(tmp_path) as one:
        yield one


def waiters(bench: Bench) -> int:
    return sum(len(bench.partition(*key).delayed.fetches) for key in KEYS)


def test_up_to_date_partitions_are_not_looked_up(bench: Bench) -> None:
    client, writer = bench.client(), bench.client()
    client.fetch(11, dict.fromkeys(KEYS, 0), session_epoch=0)
    number = client.fetched(11).session_id
    (session,) = bench.sessions.sessions.values()
    assert len(session.changed) == 0
    assert waiters(bench) == len(KEYS)
    client.fetch(11, {}, session_id=number, session_epoch=1, max_wait_ms=LONG_MS)
    bench.until(lambda: bench.fetches.waiting == 1)
    writer.append(b"a")
    assert list(parts_of(client.fetched(11))) == [("t", 0)]
    assert [int(part.requested.index) for part in session.changed] == [0]
    # It stays changed until the client fetches the next offset.
    client.fetch(11, {("t", 0): 1}, session_id=number, session_epoch=2)
    assert parts_of(client.fetched(11)) == {}
    assert len(session.changed) == 0


def test_an_idle_session_costs_one_notification(bench: Bench) -> None:
    client, writer = bench.client(), bench.client()
    client.fetch(11, dict.fromkeys(KEYS, 0), session_epoch=0)
    number = client.fetched(11).session_id
    writer.append(b"a")
    assert len(bench.partition().delayed.fetches) == 0
    assert waiters(bench) == len(KEYS) - 1
    client.fetch(11, {("t", 0): 1}, forgotten=[("u", 0)], session_id=number, session_epoch=1)
    assert list(parts_of(client.fetched(11))) == [("t", 0)]  # its high watermark
    assert len(bench.partition().delayed.fetches) == 1
    assert len(bench.partition("u").delayed.fetches) == 0


def test_an_ended_session_unregisters_after_its_last_delayed_fetch(bench: Bench) -> None:
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


def test_each_fetch_of_a_follower_is_recorded_while_commits_wait_for_another(bench: Bench) -> None:
    """A fetch may commit records because of the time that has passed, so each fetch is recorded."""
    partition = bench.partition()
    partition.events.lag_ms_max = LAG_MS
    partition.apply_state(NODE, 1, REPLICAS, (NODE, 2), partition_epoch=0, now_ms=bench.clock.now_ms)
    partition.fetched_by(3, 0, 0, bench.clock.now_ms)  # caught up, but not in the ISR
    follower = bench.client()
    who = {"replica_state": ReplicaState(replica_id=2, replica_epoch=1)}
    follower.fetch(15, {("t", 0): 0}, session_epoch=0, **who)
    number = follower.fetched(15).session_id
    data = batch(b"a")
    partition.append(parse_batch(data, 0, len(data)), 1, bench.clock.now_ms)
    follower.fetch(15, {("t", 0): 1}, session_id=number, session_epoch=1, **who)
    assert parts_of(follower.fetched(15)) == {}
    assert partition.high_watermark == 0
    bench.clock.now_ms += LAG_MS + 1
    follower.fetch(15, {}, session_id=number, session_epoch=2, **who)
    assert parts_of(follower.fetched(15))["t", 0].high_watermark == 1


@pytest.mark.parametrize("leaves", ["appended", "forgotten", "session ends"])
def test_the_caught_up_time_of_a_follower_advances_without_changes(bench: Bench, leaves: str) -> None:
    partition = bench.partition()
    partition.events.lag_ms_max = LAG_MS
    partition.apply_state(NODE, 1, REPLICAS, (NODE, 2), partition_epoch=0, now_ms=bench.clock.now_ms)
    changes: list[Any] = []
    bench.manager.listener.alter_isr = lambda *change: changes.append(change[1])
    follower = bench.client()
    who = {"replica_state": ReplicaState(replica_id=2, replica_epoch=1)}
    follower.fetch(15, {("t", 0): 0, ("t", 1): 0}, session_epoch=0, **who)
    number = follower.fetched(15).session_id
    for epoch in range(1, 6):
        bench.clock.now_ms += LAG_MS
        follower.fetch(15, {}, session_id=number, session_epoch=epoch, **who)
        follower.fetched(15)
    bench.clock.now_ms += LAG_MS
    forgotten = [("t", 0)] if leaves == "forgotten" else []
    if leaves != "appended":
        epoch = -1 if leaves == "session ends" else 6
        follower.fetch(15, {}, forgotten=forgotten, session_id=number, session_epoch=epoch, **who)
        follower.fetched(15)
    data = batch(b"a")
    partition.append(parse_batch(data, 0, len(data)), 1, bench.clock.now_ms)
    partition.maybe_shrink_isr(bench.clock.now_ms)
    assert changes == []
    partition.maybe_shrink_isr(bench.clock.now_ms + 1)
    assert changes == [(NODE,)]
