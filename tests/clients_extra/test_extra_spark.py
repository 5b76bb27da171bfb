"""Spark's own Kafka connector with this broker, and Tidemill's source in the same session."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidemill.testing import Broker

SESSION = Path(__file__).parent / "spark" / "session.py"
SOURCES = Path(__file__).parents[2] / "src"
MOMENT_MS = 1_700_000_000_123
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

_numbers = itertools.count(1)


class ConnectorSpark:
    """A Spark with the connector in a separate process: ``ask("read", ...)`` returns its result."""

    def __init__(self, python: Path, jars: str, directory: Path) -> None:
        self._log = directory / "spark.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(SESSION)],
                cwd=directory,
                env={
                    **os.environ,
                    "JARS": jars,
                    "PYTHONPATH": f"{python}{os.pathsep}{SOURCES}",
                    "PYSPARK_PYTHON": sys.executable,
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def answer(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Returns the response: ``result`` or ``error``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"Spark ended:\n{self._log.read_text()[-4000:]}"
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, do: str, **arguments: Any) -> Any:
        """Returns the result; an error fails the test."""
        found = self.answer(do, **arguments)
        assert "error" not in found, found["error"]
        return found["result"]

    def close(self) -> None:
        """Stops Spark."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="session")
def spark(
    spark_connector: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConnectorSpark]:
    made = ConnectorSpark(*spark_connector, tmp_path_factory.mktemp("connector"))
    try:
        assert made.ask("version") in (SESSION.parent / "requirements.txt").read_text()
        yield made
    finally:
        made.close()


class Topics:
    """The tests' own access to the broker, with confluent-kafka: it shares no code with Spark or with
    Tidemill.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def new(self, partitions: int = 1) -> str:
        """Creates a topic that keeps records of any age."""
        topic = f"connector-{next(_numbers)}"
        made = self.admin.create_topics([NewTopic(topic, partitions, config={"retention.ms": "-1"})])
        made[topic].result(20)
        return topic

    def send(self, topic: str, values: list[bytes | None], codec: str = "none", **more: Any) -> None:
        """Writes to one partition, in order."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "compression.type": codec})
        for value in values:
            producer.produce(topic, value, **more)
        assert producer.flush(20) == 0

    def delete_before(self, topic: str, offset: int) -> None:
        """Deletes the records of partition 0 before ``offset``."""
        for done in self.admin.delete_records([TopicPartition(topic, 0, offset)]).values():
            done.result(20)

    def consume(self, topic: str, count: int) -> list[Any]:
        """Returns all messages of the topic, which must be ``count``."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"connector-group-{next(_numbers)}",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": False,
            }
        )
        consumer.subscribe([topic])
        found: list[Any] = []
        try:
            while len(found) < count:
                messages = consumer.consume(count - len(found), 15)
                assert messages, f"only {len(found)} of {count} messages came"
                found += messages
            assert consumer.consume(1, 0.5) == []
        finally:
            consumer.close()
        return found

    def options(self, topic: str, **options: Any) -> dict[str, str]:
        """Returns the options of a read; the format is a parameter of the test."""
        given = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": topic}
        return given | {name: str(value) for name, value in options.items()}


@pytest.fixture(scope="session")
def topics(extra_broker: Broker) -> Topics:
    return Topics(extra_broker.bootstrap)


@pytest.fixture
def values(spark: ConnectorSpark, topics: Topics) -> Callable[..., list[str]]:
    """Returns the values of a batch as text, in the order of their positions."""

    def read(topic: str, **options: Any) -> list[str]:
        rows = spark.ask("read", source="kafka", options=topics.options(topic, **options))["rows"]
        return [bytes.fromhex(row[1]).decode() for row in rows]

    return read


def places(topic: str, *counts: int) -> list[list[Any]]:
    """Returns every position of a topic with so many messages in its partitions."""
    return [[topic, partition, offset] for partition, count in enumerate(counts) for offset in range(count)]


def test_a_batch_has_every_message_with_its_value_and_position(spark: ConnectorSpark, topics: Topics) -> None:
    topic = topics.new(len(CODECS))
    for partition, codec in enumerate(CODECS):
        texts = [b"%s %d " % (codec.encode(), number) * 20 for number in range(400)]
        topics.send(topic, [*texts, None, b""], codec, partition=partition, key=b"k", timestamp=MOMENT_MS)
    read = spark.ask("read", source="kafka", options=topics.options(topic))
    assert [row[2:5] for row in read["rows"]] == places(topic, *[402] * len(CODECS))
    for partition, codec in enumerate(CODECS):
        found = [row[1] for row in read["rows"] if row[3] == partition]
        texts = [(f"{codec} {number} " * 20).encode().hex().upper() for number in range(400)]
        assert found == [*texts, None, ""]
    assert {(row[0], row[5], row[6]) for row in read["rows"]} == {("6B", MOMENT_MS, 0)}
    assert spark.ask("count", source="kafka", options=topics.options(topic)) == 402 * len(CODECS)


def test_offsets_bound_a_batch_and_min_partitions_splits_it(
    spark: ConnectorSpark, topics: Topics, values: Callable[..., list[str]]
) -> None:
    topic = topics.new(2)
    topics.send(topic, [b"%d" % number for number in range(10)], partition=0)
    topics.send(topic, [b"%d" % number for number in range(10, 20)], partition=1)
    start, end = json.dumps({topic: {"0": 4, "1": -2}}), json.dumps({topic: {"0": -1, "1": 3}})
    wanted = [str(number) for number in [*range(4, 10), *range(10, 13)]]
    assert values(topic, startingOffsets=start, endingOffsets=end) == wanted
    cut = spark.ask("read", source="kafka", options=topics.options(topic, minPartitions=5))
    assert cut["tasks"] >= 5
    assert [row[2:5] for row in cut["rows"]] == places(topic, 10, 10)


def test_starting_offsets_by_timestamp_are_found(
    spark: ConnectorSpark, topics: Topics, values: Callable[..., list[str]]
) -> None:
    topic = topics.new(2)
    for number in range(5):
        topics.send(topic, [b"%d" % number], partition=0, timestamp=MOMENT_MS + 1000 * number)
    topics.send(topic, [b"late"], partition=1, timestamp=MOMENT_MS + 9000)
    third = json.dumps({topic: {"0": MOMENT_MS + 2000, "1": MOMENT_MS}})
    assert values(topic, startingOffsetsByTimestamp=third) == ["2", "3", "4", "late"]
    assert values(topic, endingOffsetsByTimestamp=third) == ["0", "1"]
    between = json.dumps({topic: {"0": MOMENT_MS + 2001, "1": MOMENT_MS + 9000}})
    assert values(topic, startingOffsetsByTimestamp=between) == ["3", "4", "late"]
    assert values(topic, startingTimestamp=MOMENT_MS + 4000) == ["4", "late"]
    after = json.dumps({topic: {"0": MOMENT_MS + 5000, "1": MOMENT_MS}})
    refused = spark.answer(
        "count", source="kafka", options=topics.options(topic, startingOffsetsByTimestamp=after)
    )
    assert f"{topic}-0" in refused["error"]
    latest = {"startingOffsetsByTimestamp": after, "startingOffsetsByTimestampStrategy": "latest"}
    assert values(topic, **latest) == ["late"]


def test_includeheaders_adds_a_column_of_headers(spark: ConnectorSpark, topics: Topics) -> None:
    topic = topics.new()
    topics.send(topic, [b"v"], headers=[("a", b"\x00\xff"), ("b", None), ("a", b"")])
    topics.send(topic, [b"w"])
    read = spark.ask("read", source="kafka", options=topics.options(topic, includeHeaders="true"))
    assert ["headers", "array<struct<key:string,value:binary>>"] in read["schema"]
    assert [row[7] for row in read["rows"]] == [[["a", "00FF"], ["b", None], ["a", ""]], None]


def test_a_stream_continues_from_its_checkpoint(
    spark: ConnectorSpark, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.new(2)
    topics.send(topic, [b"v"] * 30, partition=0)
    topics.send(topic, [b"v"] * 20, partition=1)
    where = {"output": str(tmp_path / "out"), "checkpoint": str(tmp_path / "checkpoint")}
    options = topics.options(topic, startingOffsets="earliest", maxOffsetsPerTrigger=20)

    def run() -> list[int]:
        found: list[int] = spark.ask("stream", source="kafka", options=options, **where)
        return found

    first = run()
    assert sum(first) == 50
    assert max(first) <= 20
    assert spark.ask("places", output=where["output"]) == places(topic, 30, 20)
    assert run() == []
    topics.send(topic, [b"v"] * 15, partition=1)
    assert sum(run()) == 15
    assert spark.ask("places", output=where["output"]) == places(topic, 30, 35)


def test_a_stream_that_lost_records_stops(spark: ConnectorSpark, topics: Topics, tmp_path: Path) -> None:
    topic = topics.new()
    topics.send(topic, [b"v"] * 5)
    where = {"output": str(tmp_path / "out"), "checkpoint": str(tmp_path / "checkpoint")}
    options = topics.options(topic, startingOffsets="earliest")
    assert sum(spark.ask("stream", source="kafka", options=options, **where)) == 5
    topics.send(topic, [b"v"] * 10)
    topics.delete_before(topic, 9)
    assert "failOnDataLoss" in spark.answer("stream", source="kafka", options=options, **where)["error"]
    spark.ask("stream", source="kafka", options={**options, "failOnDataLoss": "false"}, **where)
    wanted = [[topic, 0, offset] for offset in (*range(5), *range(9, 15))]
    assert spark.ask("places", output=where["output"]) == wanted


def test_offsets_are_also_found_with_a_consumer_group(
    spark: ConnectorSpark, topics: Topics, values: Callable[..., list[str]]
) -> None:
    """With a consumer of the driver, not the admin client: the default of the connector up to Spark 3.0."""
    topic = topics.new(2)
    topics.send(topic, [b"a", b"b"], partition=0, timestamp=MOMENT_MS)
    topics.send(topic, [b"c"], partition=1, timestamp=MOMENT_MS)
    spark.ask("set", key="spark.sql.streaming.kafka.useDeprecatedOffsetFetching", value="true")
    try:
        assert values(topic) == ["a", "b", "c"]
        assert values(topic, startingTimestamp=MOMENT_MS) == ["a", "b", "c"]
    finally:
        spark.ask("set", key="spark.sql.streaming.kafka.useDeprecatedOffsetFetching", value="false")


@pytest.mark.parametrize("codec", CODECS)
def test_messages_of_the_connector_are_stored(spark: ConnectorSpark, topics: Topics, codec: str) -> None:
    topic = topics.new(3)
    query = (
        f"select '{topic}' topic, 'k' || id key, cast('v' || id as binary) value, "
        "cast(id % 3 as int) partition, "
        "array(named_struct('key', 'n', 'value', cast(cast(id as string) as binary))) headers from range(300)"
    )
    options = {"kafka.bootstrap.servers": topics.bootstrap, "kafka.compression.type": codec}
    spark.ask("write", sink="kafka", query=query, options=options)
    found = {message.key(): message for message in topics.consume(topic, 300)}
    for number in range(300):
        message = found[b"k%d" % number]
        assert message.value() == b"v%d" % number
        assert message.partition() == number % 3
        assert message.headers() == [("n", b"%d" % number)]


def test_a_stream_of_the_connector_continues(spark: ConnectorSpark, topics: Topics, tmp_path: Path) -> None:
    one, other = topics.new(2), topics.new()
    written = {"kafka.bootstrap.servers": topics.bootstrap, "topic": other, "includeHeaders": "true"}
    options = topics.options(one, startingOffsets="earliest", includeHeaders="true")
    more = {"written": written, "checkpoint": str(tmp_path / "checkpoint")}
    topics.send(one, [b"%d" % number for number in range(50)], partition=0, headers=[("h", b"x")])
    spark.ask("forward", source="kafka", options=options, sink="kafka", **more)
    topics.send(one, [b"%d" % number for number in range(50, 70)], partition=1, headers=[("h", b"x")])
    spark.ask("forward", source="kafka", options=options, sink="kafka", **more)
    found = topics.consume(other, 70)
    assert sorted(int(message.value()) for message in found) == list(range(70))
    assert all(message.headers() == [("h", b"x")] for message in found)


def test_the_source_returns_the_rows_and_columns_of_the_connector(
    spark: ConnectorSpark, topics: Topics
) -> None:
    """In most programs only the word in ``format(...)`` changes."""
    topic = topics.new(3)
    for partition in range(3):
        headers = [("h", b"%d" % partition)] if partition else None
        more = {"key": b"k" if partition else None, "headers": headers, "timestamp": MOMENT_MS + partition}
        topics.send(topic, [b"a" * 1000, None, b""], CODECS[partition], partition=partition, **more)
    timed = json.dumps({topic: {"0": MOMENT_MS, "1": MOMENT_MS + 1, "2": MOMENT_MS + 1}})
    for more in (
        {},
        {"includeHeaders": "true"},
        {"endingOffsets": json.dumps({topic: {"0": 1, "1": 2, "2": -1}}), "minPartitions": "4"},
        {"startingOffsetsByTimestamp": timed},
    ):
        options = topics.options(topic, **more)
        theirs = spark.ask("read", source="kafka", options=options)
        ours = spark.ask("read", source="tidemill", options=options)
        assert ours["rows"] == theirs["rows"] != []
        assert ours["schema"] == theirs["schema"]


def test_the_connector_reads_the_messages_of_tidemills_sink(
    spark: ConnectorSpark, topics: Topics, values: Callable[..., list[str]]
) -> None:
    topic = topics.new()
    options = {"kafka.bootstrap.servers": topics.bootstrap, "topic": topic, "kafka.compression.type": "zstd"}
    query = "select cast(id as string) value from range(0, 1000, 1, 1)"
    spark.ask("write", sink="tidemill", query=query, options=options)
    assert values(topic) == [str(number) for number in range(1000)]
