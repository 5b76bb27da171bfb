"""A mirror of ordinary records with new offsets, with Spark and two brokers of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from record_mirrors import RecordMirror, committed_rows, rows_before
from running_mirror import Running

from tidemill.client import Admin
from tidemill.client.admin_types import ConfigResource, ResourceType
from tidemill.client.partitioners import murmur2_partition
from tidemill.model.errors import ConfigError
from tidemill.model.types import TopicPartition
from tidemill.pipeline.mirror.mirror_settings import MirrorSource
from tidemill.pipeline.mirror.topic_filter import TopicFilter
from tidemill.pipeline.mirror.topic_sync import topic_keys_of
from tidemill.pipeline.spark_errors import explained
from tidemill.testing.broker import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.matrix,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("mirror"),
]


@pytest.fixture(scope="module")
def source() -> Iterator[Broker]:
    with Broker(faults=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def target() -> Iterator[Broker]:
    with Broker(faults=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def target_bootstrap(request: pytest.FixtureRequest) -> str:
    """The target; ``TIDEMILL_TEST_BOOTSTRAP`` names another one, for instance Apache Kafka."""
    given = os.environ.get("TIDEMILL_TEST_BOOTSTRAP")
    return given or str(request.getfixturevalue("target").bootstrap)


@pytest.fixture
def mirrored(spark: SparkSession, source: Broker, target_bootstrap: str, tmp_path: Path) -> RecordMirror:
    return RecordMirror(spark, source.bootstrap, target_bootstrap, tmp_path)


def refuse_error(error: Any, _: Any) -> None:
    assert error is None, error


def fill_with_everything(bootstrap: str, topic: str, partitions: int) -> None:
    """Writes records with and without keys, values, headers; of all codecs; in transactions and without."""
    from confluent_kafka import Producer

    with Admin(bootstrap) as admin:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        admin.alter_configs(resource, {"message.timestamp.after.max.ms": str(2**63 - 1)})

    headers: list[list[tuple[str, bytes | None]] | None] = [
        None,
        [("a", b"1"), ("a", b"2"), ("empty", b""), ("none", None)],
        [("name", "größe".encode())],
    ]
    times = [1, 1_356_998_400_123, 1_700_000_000_001, 4_000_000_000_000]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer(
            {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 5, "log_level": 0}
        )
        for number in range(8):
            for partition in range(partitions):
                producer.produce(
                    topic,
                    None if number == 3 else f"{codec}-{number}-{partition}".encode() * (number + 1),
                    [None, b"", b"key", f"key-{number}".encode()][number % 4],
                    partition,
                    headers=headers[number % 3],
                    timestamp=times[number % 4],
                    on_delivery=refuse_error,
                )
        assert producer.flush(30) == 0
    for number in range(6):
        settings = {"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{number}", "log_level": 0}
        producer = Producer(settings)
        producer.init_transactions(30)
        producer.begin_transaction()
        for partition in range(partitions):
            for index in range(3):
                text = f"transaction {number} record {index}".encode()
                producer.produce(topic, text, b"t", partition, timestamp=times[number % 4])
        producer.flush(30)
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def test_records_keep_all_but_their_offsets_and_the_positions_of_groups_are_exact(
    mirrored: RecordMirror,
) -> None:
    fill_with_everything(mirrored.source, mirrored.topic, mirrored.partitions)
    groups = mirrored.set_all_positions()

    result = mirrored.run(offsets_max=80)

    mirrored.assert_same_rows()
    mirrored.assert_exact_positions(groups)
    assert result.records == 3 * (5 * 8 + 3 * 3)
    assert result.lag is not None
    assert (result.lag.total, result.lag.seconds_max, result.topics) == (0, 0, 1)
    assert mirrored.run().records == 0
    mirrored.produce(30)
    assert mirrored.run().records == 30
    mirrored.assert_same_rows()
    mirrored.assert_exact_positions(groups)


def test_the_records_that_compaction_has_left_are_copied(
    spark: SparkSession, target_bootstrap: str, tmp_path: Path
) -> None:
    cleaner = {"log.cleaner.backoff.ms": "100", "log.cleaner.enable": "true"}
    compacted = {
        "cleanup.policy": "compact",
        "segment.bytes": "20000",
        "min.cleanable.dirty.ratio": "0.01",
    }
    with Broker(cleaner) as broker:
        mirrored = RecordMirror(spark, broker.bootstrap, target_bootstrap, tmp_path, 1, **compacted)
        mirrored.partitions = 1
        for start in range(0, 3_000, 300):
            mirrored.produce(300, start=start)
        deadline = time.monotonic() + 60
        while len(rows := committed_rows(broker.bootstrap, mirrored.topic, 0)) > 2_500:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        with Admin(broker.bootstrap) as admin:
            admin.alter_configs(
                ConfigResource(ResourceType.TOPIC, mirrored.topic), {"min.cleanable.dirty.ratio": "1.0"}
            )
        time.sleep(1)
        rows = committed_rows(broker.bootstrap, mirrored.topic, 0)
        positions = [0, min(rows) + 1, 1_111, 2_000, 2_500, 2_750, max(rows), 3_000]
        mirrored.set_positions({str(at): {mirrored.item(): at} for at in positions})
        mirrored.run(offsets_max=1_000)
        mirrored.assert_same_rows()
        there = committed_rows(mirrored.target, mirrored.topic, 0)
        for at in positions:
            found = mirrored.translated(str(at))[mirrored.item()]
            assert rows_before(there, found) == rows_before(rows, at), at
        with Admin(mirrored.target) as admin:
            configs = admin.topic_configs(mirrored.topic)
            assert configs["cleanup.policy"].value == "compact"
            assert configs["segment.bytes"].value == "20000"


def test_records_of_a_topic_with_other_partitions_are_placed_by_key_and_none_is_missed(
    mirrored: RecordMirror,
) -> None:
    with Admin(mirrored.target) as admin:
        admin.create_topic(mirrored.topic, 5, configs={"retention.ms": "-1"})
    mirrored.produce(300)
    positions = {
        "start": {mirrored.item(number): 0 for number in range(3)},
        "middle": {mirrored.item(0): 70, mirrored.item(1): 60, mirrored.item(2): 90},
        "some": {mirrored.item(0): 100},
        "end": {mirrored.item(number): 100 for number in range(3)},
    }
    mirrored.set_positions(positions)
    mirrored.run(offsets_max=60)
    here, there = mirrored.rows(mirrored.source), mirrored.rows(mirrored.target, partitions=5)
    assert sum(map(len, there)) == 300
    for number, rows in enumerate(there):
        for row in rows.values():
            assert row.key is not None
            assert murmur2_partition(row.key, 5) == number
    for key in {row.key for row in here[0].values()}:
        for rows in here:
            of_key = [row.value for row in rows.values() if row.key == key]
            place = [row.value for row in there[murmur2_partition(key or b"", 5)].values()]
            assert [value for value in place if value in of_key] == of_key
    for group, offsets in positions.items():
        translated = mirrored.translated(group)
        assert sorted(item.partition for item in translated) == list(range(5))
        left = {
            row.value
            for number, rows in enumerate(there)
            for offset, row in rows.items()
            if offset >= translated[mirrored.item(number)]
        }
        unread = {
            row.value
            for number, rows in enumerate(here)
            for offset, row in rows.items()
            if offset >= offsets.get(mirrored.item(number), 0)
        }
        assert unread <= left, group
    assert left == set()
    middle = mirrored.translated("middle")
    assert any(middle[mirrored.item(number)] > 0 for number in range(5))


def test_several_sources_are_merged_into_one_topic(
    mirrored: RecordMirror, spark: SparkSession, tmp_path: Path
) -> None:
    with Broker() as other:
        with Admin(other.bootstrap) as admin:
            admin.create_topic(mirrored.topic, 3, configs={"retention.ms": "-1"})
            group = f"{mirrored.topic}-g"
            admin.alter_group_offsets(group, {mirrored.item(0): 40, mirrored.item(1): 7})
        mirrored.produce(150)
        mirrored.produce(150, start=1_000, bootstrap=other.bootstrap)
        mirrored.set_positions({"g": {mirrored.item(0): 20, mirrored.item(1): 30, mirrored.item(2): 50}})
        mirrored.set_positions({"only-east": {mirrored.item(0): 20}})
        sources = [
            MirrorSource("east", {"bootstrap.servers": mirrored.source}),
            MirrorSource("north", {"bootstrap.servers": other.bootstrap}),
        ]
        mirrored.run(sources=sources, offsets_max=60)
        there = mirrored.rows(mirrored.target)
        for bootstrap, offsets in (
            (mirrored.source, {0: 20, 1: 30, 2: 50}),
            (other.bootstrap, {0: 40, 1: 7, 2: 50}),
        ):
            for number, rows in enumerate(mirrored.rows(bootstrap)):
                own = {row.value for row in rows.values()}
                copied = {offset: row for offset, row in there[number].items() if row.value in own}
                assert list(copied.values()) == list(rows.values())
                unread = [row.value for offset, row in rows.items() if offset >= offsets[number]]
                found = mirrored.translated("g")[mirrored.item(number)]
                left = [row.value for offset, row in copied.items() if offset >= found]
                assert set(unread) <= set(left), (bootstrap, number)
        assert all(len(rows) == 100 for rows in there)
        # It has read nothing of the other source.
        found = mirrored.translated("only-east")[mirrored.item(0)]
        own = {row.value for row in mirrored.rows(other.bootstrap)[0].values()}
        assert own <= {row.value for offset, row in there[0].items() if offset >= found}
        assert mirrored.run(sources=sources).records == 0


@pytest.mark.parametrize(("side", "how"), [("source", "silent"), ("target", "reset"), ("target", "silent")])
def test_a_cut_link_is_survived_and_caught_up(
    mirrored: RecordMirror, source: Broker, target: Broker, side: str, how: str
) -> None:
    broker = source if side == "source" else target
    settings = {"default.api.timeout.ms": "2000", "request.timeout.ms": "1000"}
    sources = [MirrorSource("east", {"bootstrap.servers": source.bootstrap, **settings})]
    west = MirrorSource("west", {"bootstrap.servers": target.bootstrap, **settings})
    mirrored.produce(90)
    with Running(mirrored, sources=sources, target=west) as running:
        running.wait_for(lambda: running.has_copied(90))
        broker.cut(how)
        try:
            if side == "target":
                mirrored.produce(90, start=90)
            running.wait_for(lambda: bool(running.progress[0].waiting))
            if side == "target":
                # The source can be reached, and the lag is that of the records that wait.
                running.wait_for(lambda: running.lag_of(90))
            time.sleep(3)
        finally:
            broker.heal()
        mirrored.produce(90, start=180)
        sent = 270 if side == "target" else 180
        running.wait_for(lambda: sum(map(len, mirrored.rows(target.bootstrap))) >= sent)
        running.wait_for(lambda: not running.progress[0].waiting)
        running.wait_for(lambda: running.lag_of(0))
    mirrored.assert_same_rows()


def test_records_that_the_source_has_deleted_before_they_were_copied_are_a_loss(
    mirrored: RecordMirror,
) -> None:
    mirrored.produce(60)
    mirrored.run()
    mirrored.produce(60, start=60)
    with Admin(mirrored.source) as admin:
        admin.delete_records({mirrored.item(1): 30})
    with pytest.raises(Exception, match="were deleted before they were read") as caught:
        mirrored.run()
    assert f"offsets 20 to 29 of {mirrored.topic}-1" in explained(caught.value)
    assert mirrored.run(fail_on_data_loss=False).records == 50
    assert [len(rows) for rows in mirrored.rows(mirrored.target)] == [40, 30, 40]


@pytest.mark.parametrize("batch", [0, 1])
def test_a_first_batch_of_a_topic_that_is_repeated_begins_where_it_was_planned(
    spark: SparkSession, mirrored: RecordMirror, tmp_path: Path, batch: int
) -> None:
    earlier = RecordMirror(spark, mirrored.source, mirrored.target, tmp_path)
    if batch:
        earlier.produce(30)
        earlier.run()
    mirrored.produce(60)
    wanted = f"{mirrored.topic},{earlier.topic}"
    assert run_until_killed(mirrored, "write", batch, wanted) == -signal.SIGKILL
    with Admin(mirrored.source) as admin:
        admin.delete_records({mirrored.item(0): 12})
    topics = TopicFilter(wanted)
    with pytest.raises(Exception, match="were deleted before they were read") as caught:
        mirrored.run(topics=topics)
    assert f"offsets 0 to 11 of {mirrored.topic}-0" in explained(caught.value)
    assert mirrored.run(topics=topics, fail_on_data_loss=False).records == 48
    assert [len(rows) for rows in mirrored.rows(mirrored.target)] == [8, 20, 20]


def test_a_topic_that_the_source_deletes_stays_in_the_target_and_a_recreated_one_is_copied(
    mirrored: RecordMirror,
) -> None:
    other = f"{mirrored.topic}-other"
    topics = TopicFilter(f"{mirrored.topic},{other}")
    with Admin(mirrored.source) as admin:
        admin.create_topic(other, 1)
    mirrored.produce(30)
    mirrored.run(topics=topics)
    with Admin(mirrored.source) as admin:
        admin.delete_topic(mirrored.topic)
        while mirrored.topic in [listing.name for listing in admin.list_topics()]:
            time.sleep(0.05)
        assert mirrored.run(topics=topics).records == 0
        admin.create_topic(mirrored.topic, 3, configs={"retention.ms": "-1"})
    mirrored.produce(15, start=100)
    mirrored.set_positions({"g": {mirrored.item(0): 2}})
    assert mirrored.run(topics=topics).records == 15
    there = mirrored.rows(mirrored.target)
    values = [row.value for row in there[0].values()]
    assert values[-5:] == [b"102", b"105", b"108", b"111", b"114"]
    found = mirrored.translated("g")[mirrored.item(0)]
    assert rows_before(there[0], found) == 10 + 2


def test_names_have_prefixes_and_topics_that_are_denied_or_internal_are_left_out(
    mirrored: RecordMirror,
) -> None:
    topic = mirrored.topic
    with Admin(mirrored.source) as admin:
        for name in (f"{topic}.denied", f"west.{topic}", f"{topic}.more"):
            admin.create_topic(name, 1)
        if "_tidemill_sink" not in [listing.name for listing in admin.list_topics()]:
            admin.create_topic("_tidemill_sink", 16, configs={"cleanup.policy": "compact"})
    mirrored.produce(30)
    mirrored.set_positions({"g": {mirrored.item(0): 4}})
    wanted = TopicFilter(f"{topic}.*,west.{topic},_tidemill_sink,__.*", ".*denied")
    result = mirrored.run(prefixed=True, topics=wanted)
    mirrored.assert_same_rows(f"east.{topic}")
    with Admin(mirrored.target) as admin:
        names = {listing.name for listing in admin.list_topics() if topic in listing.name}
        every = {listing.name for listing in admin.list_topics()}
    assert names == {f"east.{topic}", f"east.{topic}.more"}
    assert "east._tidemill_sink" not in every
    assert result.topics == 2
    assert mirrored.translated("g") == {TopicPartition(f"east.{topic}", 0): 4}


def test_a_running_mirror_follows_new_partitions_topics_and_settings(mirrored: RecordMirror) -> None:
    topic, later = mirrored.topic, f"{mirrored.topic}-later"
    wanted = TopicFilter(f"{topic},{later}")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    with (
        Running(mirrored, topics=wanted) as running,
        Admin(mirrored.source) as admin,
        Admin(mirrored.target) as there,
    ):
        mirrored.produce(30)
        running.wait_for(lambda: running.has_copied(30))
        admin.create_partitions(topic, 5)
        mirrored.partitions = 5
        mirrored.produce(50, start=30)
        admin.create_topic(later, 2)
        admin.alter_configs(resource, {"segment.ms": "86400000", "message.timestamp.type": "LogAppendTime"})
        running.wait_for(lambda: running.has_copied(80))
        running.wait_for(lambda: there.topic_configs(topic)["segment.ms"].value == "86400000")
        running.wait_for(lambda: running.progress[0].topics == 2)
        assert there.topic_configs(topic)["message.timestamp.type"].value == "CreateTime"
    mirrored.assert_same_rows()


def test_the_settings_that_a_cluster_without_topics_knows_are_those_of_its_first_topic(
    mirrored: RecordMirror,
) -> None:
    with Broker() as empty, Admin(empty.bootstrap) as admin, Admin(mirrored.source) as other:
        assert admin.list_topics(include_internal=True) == []
        assert topic_keys_of(admin) == topic_keys_of(other)


@pytest.mark.parametrize("same_offsets", [True, False])
def test_a_position_that_moves_back_between_two_runs_moves_back_in_the_target(
    mirrored: RecordMirror, same_offsets: bool
) -> None:
    mirrored.produce(90)
    for position in (20, 25, 5, 0, 30):
        mirrored.set_positions({"g": {mirrored.item(): position}})
        mirrored.run(same_offsets=same_offsets)
        found = mirrored.translated("g")[mirrored.item()]
        assert rows_before(mirrored.rows(mirrored.target)[0], found) == position


def test_a_cluster_is_not_mirrored_to_itself(mirrored: RecordMirror) -> None:
    west = MirrorSource("west", {"bootstrap.servers": mirrored.source})
    with pytest.raises(ConfigError, match="are the same cluster"):
        mirrored.run(target=west)
    with pytest.raises(ConfigError, match="are the same cluster"):
        mirrored.run(target=west, same_offsets=True)


def test_two_mirrors_of_one_name_against_each_other_are_refused(
    mirrored: RecordMirror, tmp_path: Path
) -> None:
    mirrored.produce(30)
    mirrored.run()
    back = mirrored.reversed(tmp_path / "back")
    result = back.run()
    assert (result.records, result.topics) == (0, 0)
    assert "from the target to the source now" in result.refused[mirrored.topic]
    assert sum(map(len, mirrored.rows(mirrored.source))) == 30
    mirrored.produce(30, start=30)
    assert mirrored.run().records == 30


STEPS = {
    "nothing is written": ("write", 0, 0),
    "the rows are written, and their sync points are not stored": ("points", 0, 30),
    "the sync points are stored, and Spark has not committed": ("commit", 0, 30),
    "the second batch is written, and its sync points are not stored": ("points", 1, 60),
}
"""The step before which the process is killed, the number of the batch, and how many records readers of the
target get then."""


def test_a_mirror_that_is_killed_between_any_two_steps_has_each_record_once(mirrored: RecordMirror) -> None:
    mirrored.produce(30)
    groups = 0
    for name, (step, batch, copied) in STEPS.items():
        if batch == 1:
            mirrored.produce(30, start=30)
            groups = mirrored.set_all_positions()
        assert run_until_killed(mirrored, step, batch) == -signal.SIGKILL, name
        assert sum(map(len, mirrored.rows(mirrored.target))) == copied, name
    assert run_until_killed(mirrored, "none", 0) == 0
    mirrored.assert_same_rows()
    mirrored.assert_exact_positions(groups)


def run_until_killed(mirrored: RecordMirror, step: str, batch: int, topics: str = "") -> int:
    """Runs the mirror in a process of its own; returns its exit code."""
    program = str(Path(__file__).with_name("killed_mirror.py"))
    wanted = topics or mirrored.topic
    arguments = [mirrored.source, mirrored.target, wanted, str(mirrored.checkpoint), step, str(batch)]
    done = subprocess.run(
        [sys.executable, program, *arguments],
        # Compiled classes have no interpreted subclasses, which the program needs to kill itself.
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "TIDEMILL_PLAIN": "1"},
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode
