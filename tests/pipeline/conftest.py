"""A real local Spark and a real broker for the tests of the pipeline.

``TIDEMILL_TEST_BOOTSTRAP=host:port`` runs them against a cluster that is there, for instance Apache Kafka.
``TIDEMILL_SPARK_CONNECTOR_JARS`` names the jars of Spark's own connector, apart by commas, to compare with.
Messages are produced, and what Spark wrote is consumed, with confluent-kafka: a peer that shares no code
with the source.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidemill.pipeline.jobs.session import spark_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


HERE = Path(__file__).parent

# Spark's processes start often here, and live for seconds.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
_places = [str(HERE / "python_start"), os.environ.get("PYTHONPATH", "")]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _places))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings are errors, except for the sockets of ``collect()``, which PySpark closes from 4.2 on."""
    ours = [item for item in items if HERE in item.path.parents]
    if not ours:
        return
    import pyspark

    if pyspark.__version__ < "4.2":
        for item in ours:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


class Cluster:
    """The cluster under test, and the operations of tests on it."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka.admin import AdminClient

        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self.producer = self._new_producer()

    def _new_producer(self) -> Any:
        from confluent_kafka import Producer

        # One request at a time: a retried message stays before later messages.
        settings = {"linger.ms": 5, "log_level": 0, "max.in.flight.requests.per.connection": 1}
        return Producer({"bootstrap.servers": self.bootstrap, **settings})

    def topic(self, partitions: int = 1, name: str | None = None, **config: str) -> str:
        """Creates a topic that keeps records of any age, and waits for it."""
        from confluent_kafka.admin import NewTopic

        name = name or f"spark-{uuid.uuid4().hex[:12]}"
        # The default retention would delete records of 2013 at its first check.
        settings = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in config.items()}}
        made = self.admin.create_topics([NewTopic(name, partitions, config=settings)], operation_timeout=10)
        made[name].result(20)
        return name

    def filled(self, count: int) -> str:
        """Creates a topic with ``count`` messages in its only partition."""
        topic = self.topic()
        self.produce(topic, count)
        return topic

    def produce(self, topic: str, count: int, partition: int = 0, *, start: int = 0, **more: Any) -> None:
        """Sends ``count`` messages: value ``b"0"``, ``b"1"`` ... from ``start``; waits for all
        acknowledgements.
        """
        for number in range(start, start + count):
            self.producer.produce(topic, str(number).encode(), partition=partition, **more)
        assert self.producer.flush(20) == 0

    def send(self, topic: str, value: bytes | None, **more: Any) -> None:
        self.producer.produce(topic, value, **more)
        assert self.producer.flush(20) == 0

    def delete(self, topic: str) -> None:
        """Deletes a topic. A producer that has written to it would request its metadata, which would recreate
        it.
        """
        self.producer = self._new_producer()
        self.admin.delete_topics([topic], operation_timeout=10)[topic].result(20)

    def delete_before(self, topic: str, offset: int, partition: int = 0) -> None:
        """Deletes the records of a partition before ``offset``."""
        from confluent_kafka import TopicPartition

        place = TopicPartition(topic, partition, offset)
        for done in self.admin.delete_records([place]).values():
            done.result(20)

    def grow(self, topic: str, partitions: int) -> None:
        from confluent_kafka.admin import NewPartitions

        self.admin.create_partitions([NewPartitions(topic, partitions)], operation_timeout=10)[topic].result(
            20
        )
        while len(self.producer.list_topics(topic, timeout=10).topics[topic].partitions) < partitions:
            pass

    def consume(self, topic: str, count: int) -> list[Any]:
        """Returns the first ``count`` messages of a topic, read with confluent-kafka."""
        from confluent_kafka import Consumer

        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": uuid.uuid4().hex,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([topic])
        found: list[Any] = []
        try:
            while len(found) < count:
                messages = consumer.consume(count - len(found), 15)
                assert messages, f"only {len(found)} of {count} messages came"
                found += messages
        finally:
            consumer.close()
        assert not [message.error() for message in found if message.error()]
        return found

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Returns the committed offsets of a group."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        request = ConsumerGroupTopicPartitions(group)
        answer = self.admin.list_consumer_group_offsets([request])[group].result(20)
        return {(one.topic, one.partition): one.offset for one in answer.topic_partitions}


class Lab:
    """Spark with that cluster."""

    def __init__(self, spark: SparkSession, cluster: Cluster, directory: Path) -> None:
        self.spark = spark
        self.cluster = cluster
        self.output = directory / "out"
        self.checkpoint = directory / "checkpoint"
        self.admission = spark_version(spark) >= (4, 2)

    def options(self, topic: str, **options: Any) -> dict[str, str]:
        given = {"kafka.bootstrap.servers": self.cluster.bootstrap}
        if "assign" not in options and "subscribePattern" not in options:
            given["subscribe"] = topic
        return {**given, **{name: str(value) for name, value in options.items()}}

    def batch(self, topic: str, schema: str | None = None, **options: Any) -> DataFrame:
        reader = self.spark.read.format("tidemill").options(**self.options(topic, **options))
        return (reader.schema(schema) if schema else reader).load()

    def start(self, topic: str, *, now: bool = True, **options: Any) -> StreamingQuery:
        """Starts a stream from the topic into Parquet."""
        given = self.options(topic, **{"startingOffsets": "earliest", **options})
        writer = (
            self.spark.readStream.format("tidemill")
            .options(**given)
            .load()
            .writeStream.format("parquet")
            .option("path", str(self.output))
            .option("checkpointLocation", str(self.checkpoint))
        )
        return writer.trigger(availableNow=True).start() if now else writer.start()

    def run(self, topic: str, **options: Any) -> list[int]:
        """Runs a stream to the current end; returns the rows of each micro-batch."""
        batches: list[int] = []
        idle = 0
        while True:
            query = self.start(topic, **options)
            query.awaitTermination()
            done = [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]
            batches += done
            idle = 0 if done else idle + 1
            # Before 4.2 such a query ends after one micro-batch, even if it is the one that a crash left
            # unfinished.
            if self.admission or idle == 2:
                return batches

    def places(self) -> list[tuple[str, int, int]]:
        """Returns topic, partition and offset of every loaded row, sorted."""
        rows = self.spark.read.parquet(str(self.output)).select("topic", "partition", "offset").collect()
        return sorted((row[0], row[1], row[2]) for row in rows)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    given = os.environ.get("TIDEMILL_TEST_BOOTSTRAP")
    if given:
        yield Cluster(given)
        return
    broker = request.getfixturevalue("tidemill_session_broker")
    yield Cluster(broker.bootstrap)
    assert broker.running, f"the broker ended by itself:\n{broker.log}"
    assert "Traceback" not in broker.log, broker.log


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from tidemill.pipeline.jobs.session import local_session

    jars = os.environ.get("TIDEMILL_SPARK_CONNECTOR_JARS")
    # Python workers inherit the setting that warnings are errors.
    session = local_session(
        "tidemill tests",
        master="local[2]",
        settings={
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            **({"spark.jars": jars} if jars else {}),
        },
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def lab(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> Lab:
    return Lab(spark, cluster, tmp_path)
