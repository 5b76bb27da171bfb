"""Measures how long requests between brokers on thousands of partitions block the event loop.

    TMPDIR=/dev/shm python bench/between_brokers.py [--partitions 10000,20000] [--only changed] [--where]

Two whole brokers run in one process, on one loop, with one store: the first is the controller. The second
receives each request of a controller on that many partitions of one topic (``--spread``: of as many topics),
and applies it. Then a client has the controller create, expand and delete such a topic with two replicas, and
a leader requests other in-sync sets of all partitions; last, the second broker requests a controlled shutdown
with half of the largest number of partitions: that time is of the broker that blocks the loop for longest,
from the request until its work is complete. The table is as that of bench/loop_hold.py. ``--where`` prints
the stacks of callbacks that take longer than ``--limit-ms``; times are not reliable then. The exit code is 1
if a callback took longer.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import existing_topics
import loop_hold
from existing_topics import TimedRequest

from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import alter_partition as isr
from tidemill.wire.messages import leader_and_isr as lead
from tidemill.wire.messages import stop_replica as stop
from tidemill.wire.messages import update_metadata as update
from tidemill.wire.messages.controlled_shutdown import ControlledShutdownRequest
from tidemill.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidemill.wire.schema import Struct

CONTROLLER, OTHER = 1, 2
EPOCH = 1
"""Of the controller, which the requests bear that are sent in its place."""
WHOLE = 2
COMMANDS = (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA)
TIMEOUT_MS = 300_000
QUIET_S = 1.5
WARMING_PARTITIONS = 200
SAMPLE_S = 0.001
FRAMES = 4
SAMPLES_SHOWN = 8


class Topics(NamedTuple):
    """The given number of partitions: of one topic, or one of each of as many topics."""

    name: str
    partitions: int
    are_spread: bool

    def all(self) -> Iterator[tuple[str, bytes, Sequence[int]]]:
        """Returns name, id and partitions of each topic."""
        if not self.are_spread:
            yield self.name, self.name.encode().rjust(16, b"-"), range(self.partitions)
            return
        for number in range(self.partitions):
            name = f"{self.name}-{number}"
            yield name, name.encode().rjust(16, b"-"), (0,)


ABOUT: dict[str, Any] = {"controller_id": CONTROLLER, "controller_epoch": EPOCH, "broker_epoch": -1}


def leads(topics: Topics, epoch: int, kind: int = 0, leader: int = OTHER) -> Struct:
    """LeaderAndIsr: the other broker leads, or follows, in that epoch."""
    replicas = [leader] if leader == OTHER else [leader, OTHER]
    states = [
        lead.LeaderAndIsrTopicState(
            topic_name=name,
            topic_id=topic_id,
            partition_states=[
                lead.LeaderAndIsrPartitionState(
                    partition_index=index,
                    controller_epoch=EPOCH,
                    leader=leader,
                    leader_epoch=epoch,
                    isr=replicas,
                    partition_epoch=epoch,
                    replicas=replicas,
                    is_new=epoch == 0,
                )
                for index in indexes
            ],
        )
        for name, topic_id, indexes in topics.all()
    ]
    return lead.LeaderAndIsrRequest(type=kind, topic_states=states, live_leaders=[], **ABOUT)


def news(topics: Topics, epoch: int, kind: int = 0) -> Struct:
    """UpdateMetadata: the states of the partitions."""
    states = [
        update.UpdateMetadataTopicState(
            topic_name=name,
            topic_id=topic_id,
            partition_states=[
                update.UpdateMetadataPartitionState(
                    partition_index=index,
                    controller_epoch=EPOCH,
                    leader=OTHER,
                    leader_epoch=epoch,
                    isr=[OTHER],
                    zk_version=epoch,
                    replicas=[OTHER],
                    offline_replicas=[],
                )
                for index in indexes
            ],
        )
        for name, topic_id, indexes in topics.all()
    ]
    brokers = [update.UpdateMetadataBroker(id=one, endpoints=[], rack=None) for one in (CONTROLLER, OTHER)]
    return update.UpdateMetadataRequest(type=kind, topic_states=states, live_brokers=brokers, **ABOUT)


def stops(topics: Topics) -> Struct:
    """StopReplica: deletes the partitions."""
    states = [
        stop.StopReplicaTopicState(
            topic_name=name,
            partition_states=[
                stop.StopReplicaPartitionState(partition_index=index, leader_epoch=-2, delete_partition=True)
                for index in indexes
            ],
        )
        for name, _, indexes in topics.all()
    ]
    return stop.StopReplicaRequest(topic_states=states, **ABOUT)


def commands(topics: Topics) -> Iterator[TimedRequest]:
    """Returns the requests of a controller, in an order in which each finds its partitions."""
    yield TimedRequest("new, led", ApiKey.LEADER_AND_ISR, 7, leads(topics, 0))
    yield TimedRequest("new", ApiKey.UPDATE_METADATA, 8, news(topics, 0))
    yield TimedRequest("in a later epoch", ApiKey.LEADER_AND_ISR, 7, leads(topics, 1))
    yield TimedRequest("in a later epoch", ApiKey.UPDATE_METADATA, 8, news(topics, 1))
    yield TimedRequest("full state", ApiKey.LEADER_AND_ISR, 7, leads(topics, 2, WHOLE))
    yield TimedRequest("full state", ApiKey.UPDATE_METADATA, 8, news(topics, 2, WHOLE))
    yield TimedRequest("deleted", ApiKey.STOP_REPLICA, 4, stops(topics))


def creation(name: str, partitions: int) -> TimedRequest:
    """Creates a topic with a replica on each broker."""
    topic = CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=2, assignments=[], configs=[]
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS, validate_only=False)
    return TimedRequest("one topic on both", ApiKey.CREATE_TOPICS, 7, request)


def in_sync_sets(topic_id: bytes, partitions: int, members: Sequence[int], epoch: int) -> TimedRequest:
    """Returns the AlterPartition of the first broker: partitions of the other leader are refused."""
    data = [
        isr.AlterPartitionRequestPartitionData(
            partition_index=index,
            leader_epoch=0,
            new_isr_with_epochs=[isr.BrokerState(broker_id=one) for one in members],
            partition_epoch=epoch,
        )
        for index in range(partitions)
    ]
    topic = isr.AlterPartitionRequestTopicData(topic_id=topic_id, partitions=data)
    request = isr.AlterPartitionRequest(broker_id=CONTROLLER, topics=[topic])
    return TimedRequest(f"in sync: {list(members)}", ApiKey.ALTER_PARTITION, 3, request)


# -- the brokers


class Sampler(threading.Thread):
    """Samples the stack of the loop when a callback takes too long."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(daemon=True)
        self.limit_s = limit_s
        self.began = 0.0
        self.found: collections.Counter[str] = collections.Counter()
        self.main = threading.main_thread().ident
        sys.setswitchinterval(SAMPLE_S / 5)

    def run(self) -> None:
        now: list[str] = []
        began = 0.0
        while True:
            time.sleep(SAMPLE_S)
            if self.began != began:
                if len(now) * SAMPLE_S > self.limit_s:
                    self.found.update(now)
                now, began = [], self.began
            if began:
                frame = sys._current_frames().get(self.main or 0)
                places = []
                while frame is not None and len(places) < FRAMES:
                    code = frame.f_code
                    places.append(f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno} {code.co_name}")
                    frame = frame.f_back
                now.append(" < ".join(places))


def serve(ready: Any, directories: Sequence[str], limit_s: float) -> None:
    """Runs both brokers; sends over ``ready`` how long callbacks took, and the results of requests."""
    import gc

    from tidemill.coordination.embedded_store import EmbeddedStore
    from tidemill.model.configs import BrokerConfig
    from tidemill.server import broker_server
    from tidemill.server.cluster_member import ClusterMember
    from tidemill.server.process import COLLECTOR_THRESHOLDS

    longest = [0.0]
    run = asyncio.events.Handle._run
    sampler = Sampler(limit_s) if limit_s else None
    if sampler is not None:
        sampler.start()

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        if sampler is not None:
            sampler.began = began
        run(handle)
        if sampler is not None:
            sampler.began = 0.0
        longest[0] = max(longest[0], time.thread_time() - began)

    asyncio.events.Handle._run = timed  # type: ignore[method-assign]
    stores: list[EmbeddedStore] = []

    async def store_of(*_: Any) -> EmbeddedStore:
        stores.append(stores[0].join() if stores else EmbeddedStore.open(f"{directories[0]}/store.db"))
        return stores[-1]

    broker_server.open_store = store_of
    services = "_cluster_services"
    setattr(broker_server.BrokerServer, services, lambda self, made: ClusterMember(self.broker, made))

    async def main() -> None:
        later = loop_hold.LATER_S
        broker_server.FLUSH_CHECK_S = broker_server.REMOVAL_CHECK_S = later
        settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.cleaner.enable": "false"}
        for key in ("log.retention.check", "replica.high.watermark.checkpoint"):
            settings[f"{key}.interval.ms"] = str(1000 * later)
        settings["log.initial.task.delay.ms"] = settings["replica.lag.time.max.ms"] = str(1000 * later)
        async with contextlib.AsyncExitStack() as stack:
            servers = []
            for number, path in zip((CONTROLLER, OTHER), directories, strict=True):
                config = BrokerConfig.of({**settings, "broker.id": str(number), "log.dirs": path})
                servers.append(await stack.enter_async_context(broker_server.running(config)))
            gc.freeze()
            gc.set_threshold(*COLLECTOR_THRESHOLDS)
            ready.send([one.listeners[0][2] for one in servers])
            loop = asyncio.get_running_loop()
            while (asked := await loop.run_in_executor(None, ready.recv)) != "end":
                if asked == "longest":
                    found, longest[0] = longest[0], 0.0
                    ready.send(found)
                elif asked == "where":
                    ready.send(sampler.found.most_common(SAMPLES_SHOWN) if sampler is not None else [])
                    if sampler is not None:
                        sampler.found.clear()
                else:
                    topic = servers[0].broker.metadata_cache.topics[asked]
                    ready.send((topic.topic_id, [one.partition_epoch for one in topic.partitions]))

    asyncio.run(main())


class Bench:
    """Sends the requests, and prints the results."""

    def __init__(self, ports: Sequence[int], brokers: Any, arguments: argparse.Namespace) -> None:
        self.ports = dict(zip((CONTROLLER, OTHER), ports, strict=True))
        self.brokers = brokers
        self.arguments = arguments
        self.holds: list[float] = []

    def measure(self, asked: TimedRequest, partitions: int, *, is_shown: bool = True) -> None:
        """Sends a request, waits until its work is complete, and prints its line."""
        frame = loop_hold.encode_request(asked.api, asked.version, 1, "bench", asked.request)
        client = loop_hold.Client(self.ports[OTHER if asked.api in COMMANDS else CONTROLLER])
        client.socket.settimeout(TIMEOUT_MS / 1000)
        self.received("longest")
        self.received("where")
        began = time.perf_counter()
        client.send(frame)
        size = client.answer()
        took = time.perf_counter() - began
        time.sleep(QUIET_S)
        hold_ms = self.received("longest") * 1000
        client.socket.close()
        if not is_shown:
            return
        self.holds.append(hold_ms)
        name = f"{asked.api.name} {asked.version} {asked.what}"
        print(f"{name:50} {partitions:10} {hold_ms:8.1f} {took:8.2f} {len(frame):9} {size:9}", flush=True)
        if self.arguments.where and hold_ms > self.arguments.limit_ms:
            for place, count in self.received("where"):
                print(f"    {count:5} {place}", flush=True)

    def received(self, asked: str) -> Any:
        """Returns the message of the brokers' process."""
        self.brokers.send(asked)
        return self.brokers.recv()

    def have_commanded(self, partitions: int, *, is_shown: bool = True) -> None:
        """Sends the requests of a controller. The broker refuses those of the real controller afterwards."""
        topics = Topics(f"c{partitions}", partitions, self.arguments.spread)
        for asked in commands(topics):
            self.measure(asked, partitions, is_shown=is_shown)

    def have_changed(self, partitions: int, *, is_shown: bool = True) -> None:
        """Sends the requests to the controller."""
        name = f"t{partitions}"
        at_once = min(partitions, existing_topics.PARTITIONS_MAX)
        self.measure(creation(name, at_once), at_once, is_shown=is_shown)
        if partitions > at_once:
            self.measure(existing_topics.growth("one topic on both", [name], partitions), partitions)
        topic_id, epochs = self.received(name)
        asked = in_sync_sets(topic_id, partitions, [CONTROLLER], epochs[0])
        self.measure(asked, partitions, is_shown=is_shown)
        asked = existing_topics.deletion("one topic on both", [name])
        self.measure(asked, partitions, is_shown=is_shown)

    def have_stopped(self, partitions: int) -> None:
        """Runs ControlledShutdown of the second broker. It is the last request: it is irreversible."""
        name = f"s{partitions}"
        at_once = min(partitions, existing_topics.PARTITIONS_MAX)
        self.measure(creation(name, at_once), at_once, is_shown=False)
        if partitions > at_once:
            asked = existing_topics.growth("one topic on both", [name], partitions)
            self.measure(asked, partitions, is_shown=False)
        request = ControlledShutdownRequest(broker_id=OTHER, broker_epoch=-1)
        self.measure(TimedRequest("leads half of them", ApiKey.CONTROLLED_SHUTDOWN, 3, request), partitions)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", default="10000,20000")
    parser.add_argument("--spread", action="store_true", help="over as many topics")
    parser.add_argument("--only", choices=("changed", "commanded"), default=None)
    parser.add_argument("--where", action="store_true", help="what the loop was at when it was held")
    parser.add_argument("--limit-ms", type=float, default=loop_hold.LIMIT_MS)
    arguments = parser.parse_args()
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    limit_s = arguments.limit_ms / 1000 if arguments.where else 0.0
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        process = multiprocessing.get_context("spawn").Process(
            target=serve, args=(theirs, (first, second), limit_s), daemon=True
        )
        process.start()
        bench = Bench(ours.recv(), ours, arguments)
        head = f"{'request':50} {'partitions':>10} {'hold ms':>8} {'answer s':>8}"
        print(f"{head} {'bytes':>9} {'reply':>9}", flush=True)
        counts = list(map(int, arguments.partitions.split(",")))
        for have in (bench.have_changed, bench.have_commanded):
            if arguments.only in (None, have.__name__.removeprefix("have_")):
                # The first of each imports its handler, and compiles its codecs.
                have(WARMING_PARTITIONS, is_shown=False)
                for count in counts:
                    have(count)
            if have == bench.have_changed and arguments.only != "commanded":
                bench.have_stopped(max(counts))
        ours.send("end")
        process.join(20)
        process.kill()
    over = sum(one > arguments.limit_ms for one in bench.holds)
    print(f"{len(bench.holds)} requests, {over} held the loop for more than {arguments.limit_ms:g} ms")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
