"""The simulated time, processes, network and store behave as the real ones."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import test_coordination_store
from event_log import EventLog
from faulty_files import PAGE_BYTES, FaultyFiles
from promises import Promises
from simulated_clients import TemporaryProducer
from simulated_disk import SimulatedFiles
from simulated_loop import Process, SimulatedLoop
from simulated_network import Listening, Network, NetworkDelays, Socket
from simulated_store import SimulatedStore, StoreServer
from test_coordination_engines_agree import told

from tidemill.coordination.coordination_store import (
    Create,
    Event,
    EventKind,
    SessionState,
    Store,
    StoreUnavailable,
)
from tidemill.coordination.embedded_store import EmbeddedStore

TIMEOUT_S = 6.0


class Stage:
    """A loop, a network and a store."""

    def __init__(self, seed: int = 1) -> None:
        self.random = Random(seed)
        self.loop = SimulatedLoop(self.random)
        self.network = Network(self.loop, self.random, NetworkDelays())
        self.server = StoreServer(self.network)
        self.processes: list[Process] = []

    def process(self, name: str) -> Process:
        """Another process, on the machine of its name."""
        one = Process(name)
        self.processes.append(one)
        self.network.machine(name).process = one
        return one

    def start(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Has a process do something."""
        return self.loop.create_task(work, context=process.context)

    def run(self, work: Coroutine[Any, Any, Any], process: Process | None = None) -> Any:
        """Runs until ``work`` is done."""
        one = process or self.process("main")
        return self.loop.run_until_complete(self.start(one, work))

    def close(self) -> None:
        """Leaves nothing behind."""
        self.loop.end(self.processes)


def run_simulated(work: Coroutine[Any, Any, Any]) -> Any:
    """As ``asyncio.run``."""
    stage = Stage()
    try:
        return stage.run(work)
    finally:
        stage.close()


@pytest.fixture
def stage() -> Any:
    """A world."""
    one = Stage()
    yield one
    one.close()


# -- time and processes


def test_simulated_time_advances_without_waiting_and_in_order(stage: Stage) -> None:
    seen = []

    async def wait(seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((seconds, asyncio.get_running_loop().time() - began))

    async def story() -> None:
        await asyncio.gather(*(wait(seconds) for seconds in (3600.0, 1.0, 60.0)))

    began = stage.loop.time()
    stage.run(story())
    assert seen == [(1.0, 1.0), (60.0, 60.0), (3600.0, 3600.0)]


def test_a_killed_process_runs_no_more_work_and_a_paused_process_runs_it_later(stage: Stage) -> None:
    seen: list[tuple[str, int]] = []

    async def count(name: str) -> None:
        try:
            for number in range(6):
                await asyncio.sleep(1)
                seen.append((name, number))
        finally:
            seen.append((name, -1))

    killed, paused = stage.process("killed"), stage.process("paused")
    stage.start(killed, count("killed"))
    task = stage.start(paused, count("paused"))

    async def story() -> None:
        await asyncio.sleep(2.5)
        killed.kill()
        paused.paused = True
        await asyncio.sleep(10)
        assert seen == [("killed", 0), ("paused", 0), ("killed", 1), ("paused", 1)]
        stage.loop.resume(paused)
        await task

    stage.run(story())
    assert seen[4:] == [("paused", number) for number in (2, 3, 4, 5, -1)]


def test_thread_jobs_take_time_and_raise_their_errors(stage: Stage) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await loop.run_in_executor(None, lambda: 7) == 7
        assert loop.time() > began
        with pytest.raises(OSError, match="broken"):
            await loop.run_in_executor(None, raise_error)

    stage.run(story())


def test_a_hanging_fsync_fails_late_and_drops_its_data(
    stage: Stage,
) -> None:
    files = SimulatedFiles(stage.loop)
    files.make_directory("/data")
    hung_s: list[float] = []

    def hangs() -> float:
        hung_s.append(stage.loop.time())
        return 5.0

    async def story() -> None:
        loop = asyncio.get_running_loop()
        one = files.open("/data/1.log", create=True)
        one.append([b"records"])
        assert files.unsynced(".log") == ["/data/1.log"]
        files.drop_syncs(".log", 1, hangs)
        with pytest.raises(OSError, match="Input/output error"):
            await loop.run_in_executor(None, one.sync)
        assert loop.time() >= hung_s[0] + 5.0
        await loop.run_in_executor(None, one.sync)
        assert files.unsynced(".log") == ["/data/1.log"]
        files.kill()
        assert files.unsynced(".log") == []

    stage.run(story())


def test_data_truncated_before_a_failed_fsync_does_not_return(stage: Stage) -> None:
    files = SimulatedFiles(stage.loop)
    files.make_directory("/data")
    one = files.open("/data/1.log", create=True)
    one.append([b"kept, "])
    one.append([b"and cut"])
    one.truncate(6)
    files.drop_syncs(".log", 1)
    with pytest.raises(OSError, match="Input/output error"):
        one.sync()
    files.forget_written("/data/1.log")
    assert files.read("/data/1.log") == bytes(6)


@pytest.mark.parametrize("size", [0, 6])
def test_a_failed_fsync_loses_nothing_if_all_its_data_were_truncated(stage: Stage, size: int) -> None:
    files = SimulatedFiles(stage.loop)
    lost: list[str] = []
    files.dropped = lost.append
    files.make_directory("/data")
    one = files.open("/data/1.log", create=True)
    one.append([b"records"])
    one.truncate(size)
    files.drop_syncs(".log", 1)
    with pytest.raises(OSError, match="Input/output error"):
        one.sync()
    assert lost == ["/data/1.log"][:size]


def raise_error() -> None:
    raise OSError("broken")


# -- the network


async def served(stage: Stage, name: str = "server") -> tuple[Process, list[Socket]]:
    """A process that accepts connections, and those that it has accepted."""
    process = stage.process(name)
    accepted: list[Socket] = []

    def listen() -> None:
        one = Listening(stage.network, stage.network.machine(name), 9092)
        stage.loop.add_reader(one.fileno(), lambda: accepted.append(one.accept()[0]))

    process.context.run(listen)
    return process, accepted


async def receive(stage: Stage, sock: Socket) -> bytes:
    """The next bytes of a socket."""
    buffer = bytearray(100)
    count = await stage.loop.sock_recv_into(sock, memoryview(buffer))
    return bytes(buffer[:count])


def test_bytes_and_the_end_of_a_connection_arrive_later_and_in_order(stage: Stage) -> None:
    async def story() -> None:
        _, accepted = await served(stage)
        ours = await stage.network.connect("server", 9092)
        (theirs,) = accepted
        for number in range(20):
            ours.send(bytes([number]))
        ours.close()
        got = b""
        while piece := await receive(stage, theirs):
            got += piece
        assert got == bytes(range(20))

    stage.run(story())


def test_sendfile_delivers_the_current_file_except_truncated_pages(stage: Stage) -> None:
    async def story() -> None:
        _, accepted = await served(stage)
        ours = await stage.network.connect("server", 9092)
        (theirs,) = accepted
        files = SimulatedFiles(stage.loop)
        log = files.open("/log", create=True)
        log.append([b"a" * 2 * PAGE_BYTES, b"b" * PAGE_BYTES])
        stage.network.cut_off("main", "server")
        count = 3 * PAGE_BYTES
        assert log.send_to(ours.fileno(), 0, count) == count
        log.truncate(PAGE_BYTES + 10)
        log.append([b"new"])
        stage.network.mend()
        got = b""
        while len(got) < count:
            got += await receive(stage, theirs)
        assert got[: PAGE_BYTES + 13] == b"a" * (PAGE_BYTES + 10) + b"new"
        assert got[PAGE_BYTES + 13 : 2 * PAGE_BYTES] == bytes(PAGE_BYTES - 13)
        assert got[2 * PAGE_BYTES :] == b"b" * PAGE_BYTES

    stage.run(story())


def test_a_connection_to_a_closed_port_is_refused(stage: Stage) -> None:
    async def story() -> None:
        with pytest.raises(ConnectionRefusedError):
            await stage.network.connect("nobody", 9092)

    stage.run(story())


def test_bytes_sent_during_a_network_partition_arrive_after_it(stage: Stage) -> None:
    async def story() -> None:
        _, accepted = await served(stage)
        ours = await stage.network.connect("server", 9092)
        stage.network.cut_off("main", "server")
        sent_s = stage.loop.time()
        ours.send(b"late")
        accepted[0].send(b"the other way")
        assert await receive(stage, ours) == b"the other way"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await receive(stage, accepted[0])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await stage.network.connect("server", 9092)
        stage.network.mend()
        assert await receive(stage, accepted[0]) == b"late"
        assert accepted[0].received_sent_s == sent_s < stage.loop.time() - 5

    stage.run(story())


def test_connections_of_a_killed_process_are_reset(stage: Stage) -> None:
    async def story() -> None:
        process, _ = await served(stage)
        ours = await stage.network.connect("server", 9092)
        process.kill()
        stage.network.process_ended(stage.network.machine("server"))
        with pytest.raises(ConnectionResetError):
            await receive(stage, ours)
        with pytest.raises(ConnectionRefusedError):
            await stage.network.connect("server", 9092)

    stage.run(story())


def test_a_machine_without_power_is_silent_and_resets_connections_after_its_return(stage: Stage) -> None:
    async def story() -> None:
        machine = stage.network.machine("server")
        process, _ = await served(stage)
        ours = await stage.network.connect("server", 9092)
        process.kill()
        stage.network.power_lost(machine)
        ours.send(b"anybody there")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await receive(stage, ours)
        stage.network.power_back(machine)
        with pytest.raises(ConnectionResetError):
            await receive(stage, ours)

    stage.run(story())


def test_a_writer_waits_for_a_slow_reader(stage: Stage) -> None:
    async def story() -> None:
        _, accepted = await served(stage)
        ours = await stage.network.connect("server", 9092)
        sent = sum(ours.send(bytes(100_000)) for _ in range(3))
        with pytest.raises(BlockingIOError):
            ours.send(b"more")
        told = asyncio.Event()
        stage.loop.add_writer(ours, told.set)
        await asyncio.sleep(1)
        assert not told.is_set()
        left = sent
        while left:
            left -= len(accepted[0].recv(1 << 20))
        await told.wait()

    stage.run(story())


# -- the store

STORE_TESTS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    name: check
    for name, check in vars(test_coordination_store).items()
    if name.startswith("test_") and list(inspect.signature(check).parameters) == ["sessions"]
}


@asynccontextmanager
async def simulated_sessions() -> AsyncIterator[tuple[Store, Store]]:
    """Two sessions with one server."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    server = StoreServer(Network(loop, loop.random, NetworkDelays()))
    one = await SimulatedStore.open(server, TIMEOUT_S)
    two = await SimulatedStore.open(server, TIMEOUT_S)
    yield one, two
    await one.close()
    await two.close()


@pytest.mark.parametrize("name", sorted(STORE_TESTS))
def test_the_simulated_store_passes_the_store_tests(name: str) -> None:
    run_simulated(STORE_TESTS[name](simulated_sessions))


@pytest.mark.parametrize("seed", range(3))
def test_the_simulated_store_agrees_with_the_embedded_one(seed: int, tmp_path: Path, stage: Stage) -> None:
    async def embedded() -> list[object]:
        store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        try:
            return await told(store, seed)
        finally:
            await store.close()

    async def simulated() -> list[object]:
        return await told(await SimulatedStore.open(stage.server, TIMEOUT_S), seed)

    assert stage.run(simulated()) == asyncio.run(embedded())


def test_a_silent_session_expires_and_its_client_is_notified_later(stage: Stage) -> None:
    cut_off, other = stage.process("cut off"), stage.process("other")
    states: list[SessionState] = []
    events: list[Event] = []

    async def begin() -> SimulatedStore:
        store = await SimulatedStore.open(stage.server, TIMEOUT_S)
        store.on_session(states.append)
        await store.transact([Create("/mine", ephemeral=True), Create("/stays")])
        await store.watch("/other", events.append)
        return store

    async def look() -> None:
        store = await SimulatedStore.open(stage.server, TIMEOUT_S)
        await store.transact([Create("/other")])
        for ends in (("cut off", "store"), ("store", "cut off")):
            stage.network.cut_off(*ends)
        await store.transact([Create("/other/child")])
        await asyncio.sleep(TIMEOUT_S * 0.9)
        assert await store.exists("/mine")
        await asyncio.sleep(TIMEOUT_S)
        assert not await store.exists("/mine")
        assert await store.exists("/stays")

    store = stage.run(begin(), cut_off)
    before = store.session_id
    stage.run(look(), other)
    assert states == [SessionState.SUSPENDED]
    with pytest.raises(StoreUnavailable):
        stage.run(store.get("/stays"), cut_off)
    stage.network.mend()
    stage.run(asyncio.sleep(TIMEOUT_S), cut_off)
    assert states == [SessionState.SUSPENDED, SessionState.EXPIRED, SessionState.CONNECTED]
    assert store.session_id != before
    assert [event.kind for event in events] == [EventKind.CREATED, EventKind.CHILDREN_CHANGED]


def test_store_events_may_be_delayed_and_requests_are_not(stage: Stage) -> None:
    late, other = stage.process("late"), stage.process("other")
    done: list[str] = []

    async def begin() -> SimulatedStore:
        return await SimulatedStore.open(stage.server, TIMEOUT_S)

    async def story() -> None:
        store.late_s = TIMEOUT_S / 4
        began_s = stage.loop.time()
        await store.transact([Create("/written")])
        assert stage.loop.time() >= began_s + TIMEOUT_S / 4
        done.append("answered")

    async def look() -> None:
        looking = await SimulatedStore.open(stage.server, TIMEOUT_S)
        await asyncio.sleep(TIMEOUT_S / 8)
        if await looking.exists("/written"):
            done.append("written")

    store = stage.run(begin(), late)
    looking = stage.loop.create_task(look(), context=other.context)
    stage.run(story(), late)
    assert looking.done()
    assert done == ["written", "answered"]


def test_a_call_in_flight_at_a_connection_loss_has_an_unknown_result(stage: Stage) -> None:
    done = 0

    async def story() -> None:
        nonlocal done
        store = await SimulatedStore.open(stage.server, TIMEOUT_S)
        for number in range(40):
            call = asyncio.ensure_future(store.transact([Create(f"/{number}")]))
            await asyncio.sleep(0)
            store.lose_connection()
            with pytest.raises(StoreUnavailable):
                await call
            while True:
                await asyncio.sleep(0.1)
                try:
                    done += await store.exists(f"/{number}")
                except StoreUnavailable:
                    continue
                break

    stage.run(story())
    assert 5 < done < 35


class Remade(TemporaryProducer):
    """Its topic is recreated during its leader lookup; records the producer id of its next send."""

    remade = True
    ids: list[int]

    async def leader(self, partition: int) -> str:
        if self.remade:
            self.remade = False
            self._another_topic(bytes(16))
        return "broker-1"

    async def _get_id(self) -> None:
        self._id = (1001, 0)

    async def _send_some(self, partition: int, address: str) -> None:
        self.ids.append(self._id[0])


def test_an_idempotent_producer_sends_nothing_without_an_id_to_a_recreated_topic(stage: Stage) -> None:
    promises = Promises(EventLog(stage.loop), stage.loop.time)
    producer = Remade(
        "p", [], "u", promises, Random(1), partitions=1, acks=-1, is_idempotent=True, pause_s=0.1, in_flight=3
    )
    producer.ids = []
    for _ in range(2):
        stage.run(producer.work())
    assert producer.ids == [1001]


def test_a_coroutine_that_waits_in_its_cleanup_ends_with_the_simulation() -> None:
    """Else it would be when it is collected, in the middle of something else."""
    loop = SimulatedLoop(Random(1))
    process = Process("one")
    ended = []

    async def stop() -> None:
        try:
            await loop.create_future()
        finally:
            try:
                await loop.create_future()
            finally:
                ended.append(process.name)

    async def serve() -> None:
        await stop()

    task = loop.create_task(serve())
    process.remains.append(task)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.end([process])
    assert ended == ["one"]


@pytest.mark.parametrize("seed", range(20))
def test_a_simulated_directory_matches_a_model(seed: int) -> None:
    random = Random(seed)
    files = FaultyFiles()
    paths = {"/a", "/a/b", "/a/c"}
    for path in sorted(paths):
        files.make_directory(path)
    if seed % 2:
        files.sync_directory("/")
        files.sync_directory("/a")
    for number in range(60):
        old = random.choice(sorted(paths - {"/a", "/a/b"}) or ["/a/c"])
        new = f"{random.choice(('/a', '/a/b'))}/{number}"
        if random.random() < 0.4:
            files.replace(new, b"x")
            paths.add(new)
        elif random.random() < 0.7 and old in paths and not new.startswith(old + "/"):
            files.rename(old, new)
            paths = {new + one[len(old) :] if (one + "/").startswith(old + "/") else one for one in paths}
        elif old in paths and not any(one.startswith(old + "/") for one in paths):
            files.remove(old)
            paths.discard(old)
        for directory in ("/a", "/a/b"):
            names = [one.rpartition("/")[2] for one in paths if one.rpartition("/")[0] == directory]
            assert files.list(directory) == sorted(names)
    for directory in ("/", "/a", "/a/b"):
        files.sync_directory(directory)
    files.power_cut()
    assert files.list("/a/b") == sorted(one[len("/a/b/") :] for one in paths if one.startswith("/a/b/"))
    assert set(files.list("/a")) == {one.split("/")[2] for one in paths if one.count("/") > 1}


def test_a_full_disk_rejects_new_pages_and_keeps_its_data() -> None:
    loop = SimulatedLoop(Random(1))
    files = SimulatedFiles(loop)
    files.make_directory("/data")
    log = files.open("/data/log", create=True)
    log.append([b"before"])
    files.is_full = True
    log.append([b", and in the same page"])
    with pytest.raises(OSError, match="No space left"):
        log.append([bytes(PAGE_BYTES)])
    for write in (files.replace, files.write_unsynced):
        with pytest.raises(OSError, match="No space left"):
            write("/data/checkpoint", b"0")
    assert files.read("/data/log") == b"before, and in the same page"
    files.heal()
    files.replace("/data/checkpoint", b"0")
    loop.close()
