"""Mirrors with three replicas: leaders are killed during copies and promotions."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mirror_copy import EARLIEST, LATEST, RETRIED, PartitionPeer, Refused, copy
from test_mirrored_topics import COMPACTED, ISOLATIONS, MIRROR, fill, read, transact, until, write

from tidemill.client import Admin, Producer
from tidemill.client.admin_types import ConfigResource, ResourceType
from tidemill.client.errors import ClientError
from tidemill.model.errors import ErrorCode
from tidemill.records.mirrored_batch import as_mirrored
from tidemill.testing.broker import Broker
from tidemill.testing.cluster import Cluster
from tidemill.testing.network import BROKERS

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def source() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three brokers with a listener for clients, and another for brokers."""
    with Cluster(3) as cluster:
        yield cluster
        for broker in cluster:
            assert "Traceback" not in broker.log, broker.log


class Mirror:
    """A topic of the source, and its mirror with three replicas."""

    def __init__(self, source: Broker, cluster: Cluster, **configs: str) -> None:
        self.topic = f"mirrored-{uuid.uuid4().hex[:8]}"
        self.source, self.cluster = source, cluster
        with Admin(source.bootstrap) as admin:
            admin.create_topic(self.topic, 1, 1, configs=configs)
        with Admin(cluster.bootstrap) as admin:
            created = admin.create_topic(self.topic, 1, 3, configs={**configs, **MIRROR})
            self.topic_id = created.topic_id
        cluster.wait_in_sync(self.topic)
        internal = [f"127.0.0.1:{broker._links._link_ports[BROKERS]}" for broker in cluster if broker._links]
        self.at_source = PartitionPeer(source.bootstrap, self.topic)
        self.at_brokers = PartitionPeer(",".join(internal), self.topic)
        self.at_clients = PartitionPeer(cluster.bootstrap, self.topic)

    def copy(self, bytes_max: int = 1 << 20) -> None:
        """Copies all, through changes of the leader."""
        retry(lambda: copy(self.at_source, self.at_brokers, bytes_max))

    def alter(self, state: str) -> None:
        resource = ConfigResource(ResourceType.TOPIC, self.topic)
        with Admin(self.cluster.bootstrap) as admin:
            if state:
                admin.alter_configs(resource, {"tidemill.mirror.state": state})
            else:
                admin.alter_configs(resource, remove=["tidemill.mirror.state"])

    def replica_logs(self) -> list[bytes]:
        """The bytes of the log of each replica."""
        found = [sorted(Path(broker.data_dir).glob(f"{self.topic}-0/*.log")) for broker in self.cluster]
        return [b"".join(path.read_bytes() for path in paths) for paths in found]

    def check_same(self) -> None:
        """Fails unless all replicas have the same log, and readers read what they read at the source."""
        self.cluster.wait_in_sync(self.topic)
        until(lambda: len(set(self.replica_logs())) == 1, "all replicas have the same log")
        for timestamp in (EARLIEST, LATEST):
            assert self.at_clients.offset(timestamp) == self.at_source.offset(timestamp)
        assert self.at_clients.batches() == self.at_source.batches()
        for isolation in ISOLATIONS:
            expected = read(self.source, self.topic, isolation)
            assert read(self.at_leader(), self.topic, isolation) == expected

    def at_leader(self) -> Broker:
        return self.cluster.leader(self.topic)


def retry(call: Callable[[], object]) -> None:
    """Repeats a call until it succeeds, as a job does."""
    deadline = time.monotonic() + 90
    while True:
        try:
            call()
        except (Refused, ClientError) as problem:
            is_final = isinstance(problem, Refused) and problem.code not in RETRIED
            if is_final or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def test_only_the_inter_broker_listener_accepts_batches(source: Broker, cluster: Cluster) -> None:
    mirror = Mirror(source, cluster)
    write(source, mirror.topic, [b"one"])
    data = as_mirrored(mirror.at_source.fetched(0), 0)
    assert mirror.at_clients.send(data).error_code == ErrorCode.POLICY_VIOLATION
    assert mirror.at_clients.delete_below(7)[0] is ErrorCode.OFFSET_OUT_OF_RANGE
    with Producer(cluster.bootstrap) as producer, pytest.raises(ClientError, match="POLICY_VIOLATION"):
        producer.send(mirror.topic, b"x").result(20)
    assert mirror.at_clients.offset(LATEST) == 0
    assert mirror.at_brokers.send(data).error_code == 0
    mirror.check_same()


def test_followers_restart_at_the_log_start_of_the_source(source: Broker, cluster: Cluster) -> None:
    mirror = Mirror(source, cluster)
    for number in range(6):
        write(source, mirror.topic, [b"%d" % number] * 5)
    mirror.copy(1)
    mirror.check_same()
    start = 5_000_000_000
    for killed in (False, True):
        if killed:
            cluster.followers(mirror.topic)[0].kill()
        retry(lambda start=start: check_deleted(mirror, start))
        data = start.to_bytes(8, "big") + mirror.at_source.batches()[0][8:]
        retry(lambda data=data: check_sent(mirror, as_mirrored(data, 0)))
        if killed:
            cluster.mend()
        cluster.wait_in_sync(mirror.topic)
        until(lambda: len(set(mirror.replica_logs())) == 1, "all replicas have the same log")
        for follower in cluster.followers(mirror.topic):
            assert follower.running
        assert mirror.at_clients.offset(EARLIEST) == start
        assert read(mirror.at_leader(), mirror.topic, "read_committed") == [
            (start + number, b"0") for number in range(5)
        ]
        start += 3_000_000_000
    cluster.leader(mirror.topic).kill()
    until(lambda: leads(cluster, mirror), "another replica leads")
    assert mirror.at_clients.offset(EARLIEST) == start - 3_000_000_000
    cluster.mend()


def leads(cluster: Cluster, mirror: Mirror) -> bool:
    try:
        return mirror.at_clients.offset(LATEST) > 0
    except (Refused, ClientError):
        return False


def check_deleted(mirror: Mirror, start: int) -> None:
    code, low = mirror.at_brokers.delete_below(start)
    if code:
        raise Refused(code)
    assert low == start


def check_sent(mirror: Mirror, data: bytes) -> None:
    part = mirror.at_brokers.send(data)
    if part.error_code:
        raise Refused(part.error_code, part.error_message)


def test_leaders_are_killed_while_batches_are_copied(source: Broker, cluster: Cluster) -> None:
    mirror = Mirror(source, cluster)
    done = threading.Event()

    def write_all() -> None:
        try:
            for _ in range(5):
                fill(source, mirror.topic)
                for number in range(60):
                    transact(source, mirror.topic, ("commit", "abort")[number % 2])
        finally:
            done.set()

    def copy_all() -> None:
        while not done.is_set():
            mirror.copy(2000)
        mirror.copy()

    # Two jobs: their requests repeat each other's.
    pool = ThreadPoolExecutor(3)
    futures = [pool.submit(call) for call in (write_all, copy_all, copy_all)]
    kills = 0
    while not done.is_set() or kills < 3:
        time.sleep(2)
        leader = cluster.leader(mirror.topic)
        leader.kill()
        kills += 1
        time.sleep(2)
        leader.start()
        cluster.wait_in_sync(mirror.topic)
    for future in futures:
        future.result(120)
    pool.shutdown()
    mirror.check_same()


def test_a_compacted_topic_is_promoted_while_leaders_change(source: Broker, cluster: Cluster) -> None:
    mirror = Mirror(source, cluster, **COMPACTED)
    fill(source, mirror.topic)
    mirror.copy(3000)
    committed = read(source, mirror.topic, "read_committed")
    first = cluster.leader(mirror.topic)
    mirror.alter("promoting")
    first.kill()
    retry(lambda: check_promoted(mirror))
    first.start()
    second = cluster.leader(mirror.topic)
    second.pause()
    retry(lambda: check_promoted(mirror))
    second.resume()
    cluster.mend()
    retry(lambda: check_promoted(mirror))
    mirror.alter("")
    until(lambda: accepts(cluster, mirror), "the topic is an ordinary one")
    write(cluster.leader(mirror.topic), mirror.topic, [b"idempotent"], b"own", enable_idempotence="true")
    transact(cluster.leader(mirror.topic), mirror.topic, "commit", b"own")
    transact(cluster.leader(mirror.topic), mirror.topic, "abort", b"own")
    found = read(cluster.leader(mirror.topic), mirror.topic, "read_committed")
    assert found[: len(committed)] == committed
    ours = [value for _, value in found[len(committed) :] if value != b"probe"]
    assert ours == [b"idempotent", b"commit 0", b"commit 1"]
    cluster.wait_in_sync(mirror.topic)
    for broker in list(cluster):
        broker.kill()
        until(lambda: leads(cluster, mirror), "another replica leads")
        assert read(cluster.leader(mirror.topic), mirror.topic, "read_committed") == found
        cluster.mend()


def check_promoted(mirror: Mirror) -> None:
    if not mirror.at_clients.is_promoted(mirror.topic_id):
        raise Refused(ErrorCode.NOT_ENOUGH_REPLICAS)


def accepts(cluster: Cluster, mirror: Mirror) -> bool:
    try:
        write(cluster.leader(mirror.topic), mirror.topic, [b"probe"], b"probe")
        with Producer(cluster.bootstrap) as producer:
            producer.send(mirror.topic, b"probe", key=b"probe").result(20)
    except ClientError:
        return False
    return True
