"""Moves of partitions between data directories: while they are written, and through a stop at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest

from tidemill.broker.fetch import diverges
from tidemill.broker.fetch_sessions import FetchPart
from tidemill.log.aborted import AbortedTransactions
from tidemill.log.config import LogConfig
from tidemill.log.log import Log
from tidemill.log.manager import LogManager
from tidemill.log.moves import Move, begin_move
from tidemill.log.names import LEADER_EPOCHS, MOVED_TO, TRANSACTION_INDEX
from tidemill.log.segment import Slice
from tidemill.model.clock import SystemClock
from tidemill.model.errors import ErrorCode, KafkaError, StorageError
from tidemill.model.types import TopicPartition
from tidemill.records.batch import parse_batch
from tidemill.records.builder import build_batch, build_end_marker
from tidemill.records.reader import read_records
from tidemill.replication.follows import Follows
from tidemill.replication.manager import ReplicaManager
from tidemill.replication.moves import Mover
from tidemill.replication.partition import Partition
from tidemill.replication.partition_state import PartitionState
from tidemill.testing.files import FaultyFiles, Killed

NODE = 1
A, B, C = "/disk/a", "/disk/b", "/disk/c"
KEY = TopicPartition("t", 0)
ID = b"t" * 16
CONFIG = LogConfig(
    segment_bytes=2000, index_interval_bytes=200, segment_index_bytes=4000, file_delete_delay_ms=0
)
PATIENCE_S = 20.0


class Mortal(FaultyFiles):
    """The process ends at the ``last``-th operation on files."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.last = 1 << 60

    def check(self, operation: str, path: str) -> None:
        self.count += 1
        if self.count >= self.last:
            raise Killed
        super().check(operation, path)


class Stage:
    """A broker's partitions over files in memory; ``t-0`` lies in ``/disk/a``."""

    def __init__(self, files: FaultyFiles, directories: tuple[str, ...] = (A, B, C)) -> None:
        self.files = files
        self.logs = LogManager(files, directories, recovery_threads=2)
        self.logs.lock()
        self.logs.claim("cluster", NODE)
        self.logs.load(0, lambda topic: CONFIG)
        self.pool = ThreadPoolExecutor(2)
        loop = asyncio.get_running_loop()
        self.replicas = ReplicaManager(NODE, self.logs, SystemClock(), loop, self.pool, self.pool)
        states = [PartitionState(0, NODE, 0, (NODE,), (NODE,))]
        self.replicas.put_topic("t", ID, False, states, CONFIG)
        self.replicas.mover.resume()
        self.mover = self.replicas.mover

    @property
    def partition(self) -> Partition:
        found = self.replicas.find("t", 0)
        assert found is not None
        return found

    @property
    def log(self) -> Log:
        return self.partition.log

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            value = b"%d" % self.log.end_offset
            data = build_batch([(1_700_000_000_000, b"k", value, None)])
            self.partition.append([parse_batch(data, 0, len(data))], 1, 0)

    async def moved(self) -> None:
        """Waits until no move is under way."""
        async with asyncio.timeout(PATIENCE_S):
            while tasks := list(self.mover._tasks):
                await asyncio.wait(tasks)

    async def lies_in(self, path: str) -> None:
        """Waits until the partition lies in a data directory."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if self.log.directory == f"{path}/t-0":
                    return
                await asyncio.sleep(0.001)

    async def full(self) -> None:
        """Waits until a directory has no room."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if self.replicas.full_disks.since:
                    return
                await asyncio.sleep(0.001)

    async def stop(self) -> None:
        await self.replicas.stop()
        self.pool.shutdown()
        assert self.logs.close(0, {}) == []


def values(log: Log) -> list[int]:
    """The value of every record, which is its offset when nothing was lost or mixed up."""
    found = []
    offset = int(log.start_offset)
    while offset < log.end_offset:
        piece = log.read(offset, 1, log.end_offset, True)
        assert piece is not None
        batch = parse_batch(piece.read(), 0, piece.size)
        found += [int(record.value or b"") for record in read_records(batch)]
        offset = int(batch.next_offset)
    return found


def check_whole(stage: Stage, where: str, count: int) -> None:
    assert stage.log.directory == f"{where}/t-0"
    assert values(stage.log) == list(range(int(stage.log.start_offset), count))
    names = {path: stage.files.list(path) for path in (A, B, C)}
    assert [path for path in (A, B, C) if "t-0" in names[path]] == [where]
    assert not any(name.endswith("-future") for path in names for name in names[path])
    assert MOVED_TO not in stage.files.list(f"{where}/t-0")


def test_a_partition_moves_while_it_is_written_and_read() -> None:
    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.append(100)
        assert stage.log.directory == f"{A}/t-0"
        piece = stage.log.read(7, 1, 100, True)
        stage.mover.begin(KEY, B)
        async with asyncio.timeout(PATIENCE_S):
            while stage.log.directory != f"{B}/t-0":
                stage.append()
                await asyncio.sleep(0.001)
        stage.append(5)
        await stage.moved()
        assert piece is not None
        assert piece.read()[:8] == (7).to_bytes(8, "big")
        count = int(stage.log.end_offset)
        assert count > 105
        check_whole(stage, B, count)
        assert [path for path in stage.logs.due_removals(1 << 62) if path.startswith(f"{A}/t-0.")]
        await stage.stop()
        again = Stage(stage.files)
        assert again.logs.recovered_bytes == 0
        check_whole(again, B, count)
        again.append()
        await again.stop()

    asyncio.run(run())


def test_deleted_records_stay_deleted_and_the_topic_may_go_meanwhile() -> None:
    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.append(60)
        stage.log.advance_start(33)
        stage.mover.begin(KEY, C)
        await stage.moved()
        assert stage.log.start_offset == 33
        check_whole(stage, C, 60)
        stage.files.kill()
        again = Stage(stage.files)
        assert again.log.start_offset == 33
        check_whole(again, C, 60)
        again.mover.begin(KEY, A)
        list(again.replicas.removing("t", again.log.topic_id))
        await again.moved()
        for path in (A, B, C):
            assert not [name for name in again.files.list(path) if name in ("t-0", "-future")]
        await again.stop()

    asyncio.run(run())


@pytest.mark.parametrize("step", ["sync_target", "retire"])
def test_records_deleted_just_before_the_swap_stay_deleted_when_the_broker_is_killed_after_it(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = Mover._prepare

    async def prepare_and_delete(mover: Mover, move: Move) -> None:
        await prepare(mover, move)
        replicas = mover.replicas
        partition = replicas.find("t", 0)
        assert partition is not None
        if partition.log.start_offset == 0:
            partition.advance_start(33)
            assert await replicas.checkpoints.log_starts_in([replicas.logs.directory_of(move.source)]) == []

    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.append(60)
        with monkeypatch.context() as patched:
            patched.setattr(Mover, "_prepare", prepare_and_delete)
            await move_with_failing_step(stage, monkeypatch, step)
        assert stage.log.directory == f"{B}/t-0"
        assert stage.log.start_offset == 33
        stage.files.kill()
        again = Stage(stage.files)
        assert again.log.start_offset == 33
        check_whole(again, B, 60)
        await again.stop()

    asyncio.run(run())


def test_deleted_records_stay_deleted_when_a_power_cut_takes_the_moved_name_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.append(60)
        stage.log.flush(0)
        stage.partition.advance_start(33)
        await stage.replicas.checkpoints.log_starts()
        sync_target = Move.sync_target

        def fail(move: Move) -> None:
            stage.files.fail("sync_directory", B, errno.EIO, times=1000)
            sync_target(move)

        monkeypatch.setattr(Move, "sync_target", fail)
        stage.mover.begin(KEY, B)
        await stage.moved()
        target = stage.logs.at_path(B)
        assert target is not None
        assert target.failure
        await stage.replicas.checkpoints.removals()
        stage.files.power_cut()
        stage.files.heal()
        again = Stage(stage.files)
        assert again.log.directory == f"{A}/t-0"
        assert again.log.start_offset == 33
        assert again.log.end_offset == 60
        await again.stop()

    asyncio.run(run())


@pytest.mark.parametrize("new_id", [ID, b"n" * 16])
def test_a_partition_made_anew_where_it_came_from_while_a_move_ends_is_not_removed(
    new_id: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        stage = Stage(FaultyFiles(), (A, B))
        stage.append(60)
        sync_target = Mover._sync_target

        async def make_anew(mover: Mover, move: Move) -> None:
            await sync_target(mover, move)
            list(stage.replicas.removing("t", ID))
            await stage.replicas.checkpoints.removals()
            stage.logs.prefer(KEY, A)
            stage.logs.create(KEY, new_id, CONFIG, 0)
            states = [PartitionState(0, NODE, 0, (NODE,), (NODE,))]
            stage.replicas.put_topic("t", new_id, False, states, CONFIG)
            stage.append(5)

        monkeypatch.setattr(Mover, "_sync_target", make_anew)
        stage.mover.begin(KEY, B)
        await stage.moved()
        assert stage.log.directory == f"{A}/t-0"
        assert values(stage.log) == list(range(5))
        stage.append(5)
        await stage.replicas.remove_due()
        stage.files.kill()
        again = LogManager(stage.files, (A, B))
        again.load(0, lambda topic: CONFIG)
        assert (again.logs[KEY].topic_id, again.logs[KEY].end_offset) == (new_id, 10)

    asyncio.run(run())


@pytest.mark.parametrize("loss", ["log", "directory"])
def test_a_loss_that_was_not_heeded_before_a_move_is_told_by_the_next_start(loss: str) -> None:
    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.append(60)
        if loss == "log":
            stage.logs.damaged.add(KEY)
        else:
            stage.logs.directory_of(stage.log).may_have_lost = True
        stage.mover.begin(KEY, B)
        await stage.moved()
        assert stage.log.directory == f"{B}/t-0"
        stage.files.kill()
        again = Stage(stage.files)
        assert again.logs.damaged == {KEY}
        again.logs.loss_heeded()
        again.files.kill()
        assert Stage(stage.files).logs.damaged == set()

    asyncio.run(run())


def test_a_log_that_is_cut_while_it_moves_is_copied_anew() -> None:
    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.append(80)
        stage.mover.begin(KEY, B)
        while stage.mover.moves[KEY].future.end_offset == 0:
            stage.append()
            await asyncio.sleep(0)
        stage.log.truncate_to(10, 0)
        stage.append(3)
        await stage.moved()
        check_whole(stage, B, 13)
        await stage.stop()

    asyncio.run(run())


def test_a_move_to_elsewhere_calls_the_first_one_off() -> None:
    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.append(80)
        stage.mover.begin(KEY, B)
        stage.mover.begin(KEY, B)
        await asyncio.sleep(0)
        stage.mover.begin(KEY, C)
        await stage.moved()
        check_whole(stage, C, 80)
        stage.mover.begin(KEY, B)
        await asyncio.sleep(0)
        stage.mover.begin(KEY, C)
        await stage.moved()
        check_whole(stage, C, 80)
        await stage.stop()

    asyncio.run(run())


def test_a_move_that_was_called_off_while_it_marked_the_partition_leaves_the_mark_of_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    marks, goes_on, ends = threading.Event(), threading.Event(), threading.Event()
    mark = Move.mark

    def mark_late(move: Move) -> None:
        if move.target.path == B:
            marks.set()
            assert goes_on.wait(PATIENCE_S)
        mark(move)

    def sync_late(move: Move) -> None:
        assert ends.wait(PATIENCE_S)

    monkeypatch.setattr(Move, "mark", mark_late)
    monkeypatch.setattr(Move, "sync_target", sync_late)

    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.append(80)
        stage.mover.begin(KEY, B)
        await asyncio.get_running_loop().run_in_executor(None, marks.wait, PATIENCE_S)
        stage.mover.begin(KEY, C)
        await asyncio.sleep(0.2)
        goes_on.set()
        await asyncio.sleep(0.1)
        await stage.lies_in(C)
        stage.append(5)
        stage.files.kill()
        again = Stage(stage.files)
        assert values(again.log) == list(range(85))
        await again.stop()
        ends.set()

    asyncio.run(run())


def test_what_cannot_be_moved_is_refused_with_kafkas_codes() -> None:
    async def run() -> None:
        stage = Stage(FaultyFiles())
        for key, path, code in (
            (KEY, "/disk/unknown", ErrorCode.LOG_DIR_NOT_FOUND),
            (TopicPartition("t", 7), B, ErrorCode.REPLICA_NOT_AVAILABLE),
            (TopicPartition("x" * 220, 0), B, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ):
            with pytest.raises(KafkaError) as caught:
                stage.mover.begin(key, path)
            assert caught.value.code == code
        # A partition that comes later goes where it was asked for.
        assert stage.logs.create(TopicPartition("t", 7), ID, CONFIG, 0).directory == f"{B}/t-7"
        stage.logs.fail_directory(B, "Input/output error")
        with pytest.raises(KafkaError) as caught:
            stage.mover.begin(KEY, B)
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        await stage.stop()

    asyncio.run(run())


def test_a_move_that_waits_for_its_rate_goes_on_when_another_one_is_set() -> None:
    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.append(80)
        stage.mover.bytes_per_second = 1
        stage.mover.begin(KEY, B)
        await asyncio.sleep(0.05)
        assert stage.mover.moves[KEY].future.end_offset == 0
        stage.mover.bytes_per_second = 1_000_000
        await stage.moved()
        check_whole(stage, B, 80)
        await stage.stop()

    asyncio.run(run())


def test_a_destination_that_fails_leaves_the_partition_where_it_is() -> None:
    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.append(80)
        stage.files.fail("append", f"{B}/t-0", errno.EIO, after=3)
        stage.mover.begin(KEY, B)
        await stage.moved()
        assert stage.log.directory == f"{A}/t-0"
        stage.append()
        stage.files.heal()
        stage.mover.begin(KEY, B)
        await stage.moved()
        check_whole(stage, B, 81)
        await stage.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("append", f"{B}/t-0"),
        ("sync", f"{B}/t-0"),
        ("replace", f"{B}/recovery-point"),
        ("replace", f"{A}/t-0/moved-to"),
        ("rename", f"{B}/t-0"),
    ],
)
def test_a_move_goes_on_when_there_is_room_again(operation: str, path: str) -> None:
    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.mover.full_again_s = 0.01
        stage.append(80)
        stage.mover.begin(KEY, B)
        stage.files.fail(operation, path, errno.ENOSPC, times=1 << 30)
        await stage.full()
        assert list(stage.replicas.full_disks.since) == [path[: len(B)]]
        stage.append()
        assert stage.log.directory == f"{A}/t-0"
        assert MOVED_TO not in stage.files.list(f"{A}/t-0")
        # Another move has its turn meanwhile.
        assert not stage.mover._places.locked()
        stage.files.heal()
        await stage.moved()
        check_whole(stage, B, 81)
        await stage.stop()
        assert start_warnings(stage.files) == []

    asyncio.run(run())


def test_a_move_without_room_can_be_called_off(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.mover.full_again_s = 0.01
        stage.append(80)
        stage.mover.begin(KEY, B)
        stage.files.fail("append", f"{B}/t-0", errno.ENOSPC, times=1 << 30)
        await stage.full()
        stage.mover.begin(KEY, C)
        await stage.moved()
        check_whole(stage, C, 80)
        await stage.stop()

    asyncio.run(run())
    assert f"the move of {KEY} waits for room: cannot write {B}/t-0." in caplog.text


def test_aborted_and_open_transactions_move_along() -> None:
    async def run() -> None:
        stage = Stage(FaultyFiles())

        def put(producer: int, *, committed: bool | None = None) -> None:
            end = int(stage.log.end_offset)
            if committed is None:
                options: dict[str, Any] = {"producer_id": producer, "producer_epoch": 0, "base_sequence": 0}
                data = build_batch(
                    [(0, b"k", bytes(100), None)], base_offset=end, transactional=True, **options
                )
            else:
                data = build_end_marker(committed, 0, producer, 0, 3, base_offset=end)
            stage.log.append_as_follower(data, 0)

        for number in range(40):
            put(number)
            put(100 + number)
            put(number, committed=bool(number % 2))
            stage.log.producer_state.entries.pop(number)
        stage.append(20)
        assert len(stage.log.segments) > 2

        def told() -> tuple[list[tuple[int, int]], dict[str, bytes], int]:
            piece = stage.log.read(0, 100, stage.log.end_offset, True)
            assert piece is not None
            found = AbortedTransactions(stage.files)(stage.log, 0, piece)
            names = [
                name for name in stage.files.list(stage.log.directory) if name.endswith(TRANSACTION_INDEX)
            ]
            data = {name: stage.files.read(f"{stage.log.directory}/{name}") for name in names}
            return found, data, int(stage.log.last_stable_offset(stage.log.end_offset))

        before = told()
        assert len(before[0]) == 20
        assert before[2] == 1
        stage.mover.begin(KEY, B)
        await stage.moved()
        assert stage.log.directory == f"{B}/t-0"
        assert told()[::2] == before[::2]
        assert b"".join(told()[1].values()) == b"".join(before[1].values())
        await stage.stop()
        (warning,) = start_warnings(stage.files)
        assert warning.startswith("t-0: 40 transactions are open, the first since offset 1 (producer 100)")

    asyncio.run(run())


def start_warnings(files: FaultyFiles) -> list[str]:
    """What a start says."""
    logs = LogManager(files, (A, B, C))
    logs.load(0, lambda topic: CONFIG)
    return logs.warnings


def refuse(*arguments: object) -> None:
    raise StorageError("Input/output error")


async def move_with_failing_step(stage: Stage, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Moves the partition to ``/disk/b``; the method ``step`` of the move raises."""
    with monkeypatch.context() as patched:
        patched.setattr(Move, step, refuse)
        stage.mover.begin(KEY, B)
        await stage.moved()


async def check_start_without_destination(stage: Stage, count: int) -> None:
    """After a stop, and with the destination away, the partition is where it was, with all its records."""
    await stage.stop()
    stage.files.fail("list", B, errno.EIO)
    again = Stage(stage.files)
    assert again.logs.at_path(B).failure
    assert values(again.log) == list(range(count))
    again.files.heal()
    await again.stop()


def test_a_destination_that_fails_at_the_end_leaves_no_mark_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.append(80)
        await move_with_failing_step(stage, monkeypatch, "swap")
        assert stage.log.directory == f"{A}/t-0"
        assert MOVED_TO not in stage.files.list(f"{A}/t-0")
        stage.append()
        await check_start_without_destination(stage, 81)

    asyncio.run(run())


def test_a_move_that_is_called_off_when_it_is_decided_leaves_no_mark_behind() -> None:
    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.append(80)
        move = begin_move(stage.logs, KEY, B, 0)
        assert move is not None
        move.mark()
        assert begin_move(stage.logs, KEY, C, 0) is not None
        assert move.is_off()
        assert MOVED_TO not in stage.files.list(f"{A}/t-0")
        await check_start_without_destination(stage, 80)

    asyncio.run(run())


def test_what_keeps_the_old_directory_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.append(80)
        await move_with_failing_step(stage, monkeypatch, "retire")
        assert stage.log.directory == f"{B}/t-0"
        assert MOVED_TO in stage.files.list(f"{A}/t-0")
        assert f"{KEY} has moved, but {A}/t-0 stays until the next start" in caplog.text
        await stage.stop()
        again = Stage(stage.files)
        check_whole(again, B, 80)
        await again.stop()

    asyncio.run(run())


def test_a_directory_that_a_first_move_left_does_not_come_back_after_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.append(80)
        await move_with_failing_step(stage, monkeypatch, "retire")
        stage.append(5)
        stage.mover.begin(KEY, C)
        await stage.moved()
        stage.append(5)
        await stage.stop()
        again = Stage(stage.files)
        check_whole(again, C, 90)
        await again.stop()

    asyncio.run(run())


class Nobody(Follows):
    """Follows no leader."""

    def follow(self, partition: Partition) -> None:
        pass

    def leave(self, partition: Partition) -> None:
        pass


@pytest.mark.parametrize("in_cluster", [False, True])
def test_a_topic_that_is_made_anew_while_a_move_of_the_one_before_ends_keeps_its_records(
    monkeypatch: pytest.MonkeyPatch, in_cluster: bool
) -> None:
    goes_on = threading.Event()

    def sync_late(move: Move) -> None:
        assert goes_on.wait(PATIENCE_S)

    monkeypatch.setattr(Move, "sync_target", sync_late)

    async def run() -> None:
        stage = Stage(FaultyFiles())
        if in_cluster:
            stage.replicas.following = Nobody()
        stage.append(80)
        stage.mover.begin(KEY, B)
        await stage.lies_in(B)
        list(stage.replicas.removing("t", ID))
        states = [PartitionState(0, NODE, 0, (NODE,), (NODE,), 0)]
        stage.replicas.put_topic("t", b"u" * 16, False, states, CONFIG)
        stage.append(5)
        goes_on.set()
        await stage.moved()
        await stage.replicas.remove_due()
        await stage.stop()
        again = LogManager(stage.files, (A, B, C))
        again.lock()
        again.load(0, lambda topic: CONFIG)
        assert list(again.logs) == [KEY]
        assert values(again.logs[KEY]) == [0, 1, 2, 3, 4]

    asyncio.run(run())


def test_a_log_that_is_cut_before_the_last_turn_is_not_copied_by_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare, store = Mover._prepare, Move.store
    threads: list[int] = []

    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.append(200)

        async def cut_after(mover: Mover, move: Move) -> None:
            await prepare(mover, move)
            stage.log.truncate_to(150, 0)

        def noted(move: Move, piece: Slice, now_ms: int) -> int:
            threads.append(threading.get_ident())
            return store(move, piece, now_ms)

        monkeypatch.setattr(Mover, "_prepare", cut_after)
        monkeypatch.setattr(Move, "store", noted)
        stage.mover.begin(KEY, B)
        await stage.moved()
        check_whole(stage, B, 150)
        await stage.stop()

    asyncio.run(run())
    assert threads
    assert threading.get_ident() not in threads


def test_nothing_is_copied_in_the_place_of_what_was_cut_before_the_cut_is_on_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Move.store
    stored_from: list[int] = []

    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.append(60)

        def cut_after(move: Move, piece: Slice, now_ms: int) -> int:
            assert not move.needs_sync
            stored_from.append(int(move.future.end_offset))
            size = store(move, piece, now_ms)
            if len(stored_from) == 1:
                move.source.truncate_to(20, now_ms)
                for at in range(20, 200):
                    data = build_batch([(1_700_000_000_000, b"k", b"%d" % at, None)])
                    move.source.append([parse_batch(data, 0, len(data))], 2, now_ms)
            return size

        monkeypatch.setattr(Move, "store", cut_after)
        stage.mover.begin(KEY, B)
        await stage.moved()
        check_whole(stage, B, 200)
        await stage.stop()

    asyncio.run(run())
    assert stored_from[:2] == [0, 20]


def test_what_was_cut_while_the_last_records_were_copied_does_not_come_back_with_a_power_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prepare, store, sync_target = Mover._prepare, Move.store, Mover._sync_target

    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.append(60)
        prepared = False

        async def fall_behind_after(mover: Mover, move: Move) -> None:
            nonlocal prepared
            await prepare(mover, move)
            if not prepared:
                prepared = True
                stage.append(200)

        def cut_after(move: Move, piece: Slice, now_ms: int) -> int:
            size = store(move, piece, now_ms)
            if prepared and move.source.end_offset > 60:
                move.source.truncate_to(30, now_ms)
                move.source.flush(now_ms)
            return size

        async def fail_after(mover: Mover, move: Move) -> None:
            await sync_target(mover, move)
            stage.files.power_cut()
            raise Killed

        monkeypatch.setattr(Mover, "_prepare", fall_behind_after)
        monkeypatch.setattr(Move, "store", cut_after)
        monkeypatch.setattr(Mover, "_sync_target", fail_after)
        stage.mover.begin(KEY, B)
        with contextlib.suppress(Killed):
            await asyncio.gather(*stage.mover._tasks)
        again = Stage(stage.files)
        assert again.log.directory == f"{B}/t-0"
        assert values(again.log) == list(range(30))
        await again.stop()

    asyncio.run(run())


def test_a_leader_that_has_moved_tells_followers_where_its_epoch_began() -> None:
    async def run() -> None:
        stage = Stage(FaultyFiles())
        stage.partition.become(NODE, 5, (NODE,), (NODE,))
        stage.append(3)
        stage.partition.become(NODE, 7, (NODE,), (NODE,))
        part = FetchPart(ID, 0)
        part.offset = 3
        part.last_fetched_epoch = 6
        stage.files.fail("rename", f"{B}/t-0/{LEADER_EPOCHS}", errno.ENOSPC)
        stage.mover.begin(KEY, B)
        await stage.moved()
        check_whole(stage, B, 3)
        stage.files.heal()
        assert diverges(part, stage.partition)
        assert (part.diverging_epoch, part.diverging_end) == (5, 3)
        stage.append()
        assert stage.files.read(f"{B}/t-0/{LEADER_EPOCHS}") == b"0\n2\n5 0\n7 3\n"
        await stage.stop()

    asyncio.run(run())


async def killed_at(files: Mortal, last: int) -> tuple[int, int, bool]:
    """Moves, and dies at an operation: the records appended and flushed by then, and whether it ended."""
    stage = Stage(files)
    stage.append(40)
    stage.log.flush(0)
    flushed = int(stage.log.recovery_point)
    files.count = 0
    files.last = last
    appended = 40
    try:
        stage.mover.begin(KEY, B)
        while stage.mover._tasks:
            for task in stage.mover._tasks:
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
            stage.append()
            appended += 1
            await asyncio.sleep(0.0005)
        ended = files.count < last
    except Killed:
        ended = False
    files.last = 1 << 60
    stage.pool.shutdown()
    return appended, flushed, ended


@pytest.mark.parametrize("power", [False, True])
def test_a_stop_at_any_operation_loses_nothing_and_the_move_ends_after_it(power: bool) -> None:
    last = 1
    outcomes = set()
    ended = False
    while not ended:
        files = Mortal()
        appended, flushed, ended = asyncio.run(killed_at(files, last))
        if power:
            files.power_cut(Random(last))
        else:
            files.kill()
        outcomes.add(asyncio.run(go_on(files, flushed if power else appended)))
        last += 1
    assert outcomes == {f"{A}/t-0", f"{B}/t-0"}


async def go_on(files: FaultyFiles, least: int) -> str:
    """The next start, which brings the move to its end; where the partition was before that."""
    stage = Stage(files)
    where = str(stage.log.directory)
    count = int(stage.log.end_offset)
    assert count >= least
    assert values(stage.log) == list(range(count))
    stage.append(3)
    await stage.moved()
    if stage.log.directory == f"{A}/t-0":
        # It had not begun, or its beginning was not on the disk.
        stage.mover.begin(KEY, B)
        await stage.moved()
    check_whole(stage, B, count + 3)
    await stage.stop()
    return where
