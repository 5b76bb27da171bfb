"""The rights of the sink on Apache Kafka 4.3.1: its errors name the one that is missing."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pyarrow as pa
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka_peer import Kafka, class_path

from tidemill.client.errors import ClientError
from tidemill.pipeline.at_least_once import send_batches
from tidemill.pipeline.exactly_once.control_records import Batch, Token
from tidemill.pipeline.exactly_once.control_topic import PARTITIONS, ensure_control_topic
from tidemill.pipeline.exactly_once.protocol import commit_batch, write_task
from tidemill.pipeline.exactly_once.sink_cluster import SinkCluster
from tidemill.pipeline.sink_options import parse_sink_options

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("kafka-directories"),
]
TOPIC, ID = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
SETTINGS = """
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
allow.everyone.if.no.acl.found=true
"""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    directory = tmp_path_factory.mktemp("rights")
    kafka = Kafka(class_path("4.3.1"), directory, directory / "data", settings=SETTINGS)
    try:
        kafka.start(form=True)
        yield kafka
    finally:
        kafka.end()


class Sink:
    """A query with a control topic, a target topic and a prefix of its own."""

    def __init__(self, bootstrap: str) -> None:
        self.query = uuid.uuid4().hex
        self.control, self.target = f"control-{self.query}", f"target-{self.query}"
        self.prefix = f"id-{self.query}"
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        self.given = {"kafka.bootstrap.servers": bootstrap, "topic": self.target}
        self.options = parse_sink_options({**self.given, "delivery": "exactly-once"}, streaming=True)
        self.cluster = SinkCluster(self.options, self.control, self.prefix, self.query)
        self.create(self.target, 1)

    def create(self, topic: str, partitions: int) -> None:
        new = NewTopic(topic, partitions, config={"cleanup.policy": "compact"})
        self.admin.create_topics([new], operation_timeout=20)[topic].result(30)

    def deny(self, kind: ResourceType, name: str, operation: AclOperation) -> None:
        """Denies one operation, and allows the others."""
        pattern = ResourcePatternType.PREFIXED if kind is ID else ResourcePatternType.LITERAL
        bindings = [
            AclBinding(kind, name, pattern, "User:*", "*", one, permission)
            for one, permission in (
                (AclOperation.ALL, AclPermissionType.ALLOW),
                (operation, AclPermissionType.DENY),
            )
        ]
        for done in self.admin.create_acls(bindings).values():
            done.result(30)
        every = AclBindingFilter(kind, name, pattern, None, None, AclOperation.ANY, AclPermissionType.ANY)
        while len(self.admin.describe_acls(every).result(30)) < len(bindings):
            time.sleep(0.05)

    def write(self) -> int:
        """Writes a batch; returns the number of its rows."""
        ensure_control_topic(self.options.client, self.control)
        batch, token = Batch(self.query, 0), Token("a")
        values = pa.array([b"1"], pa.binary())
        rows = [(self.target, pa.RecordBatch.from_arrays([values, values], names=["key", "value"]))]
        written = self.cluster.run(write_task(batch, token, 0), rows)
        self.cluster.run(commit_batch(batch, token, [written]))
        assert written.rows is not None
        return written.rows.rows.rows


@pytest.mark.parametrize("has_control_topic", [True, False])
@pytest.mark.parametrize(
    ("kind", "resource", "operation", "named"),
    [
        (TOPIC, "control", AclOperation.DESCRIBE, "Describe on the topic control-Q"),
        (TOPIC, "control", AclOperation.CREATE, "Create on the topic control-Q"),
        (TOPIC, "control", AclOperation.DESCRIBE_CONFIGS, "DescribeConfigs on the topic control-Q"),
        (TOPIC, "control", AclOperation.READ, "Read on the topic control-Q"),
        (TOPIC, "control", AclOperation.WRITE, "Write on the topic control-Q"),
        (TOPIC, "target", AclOperation.WRITE, "Write on the topic target-Q"),
        (ID, "prefix", AclOperation.WRITE, "Write on the transactional ids that begin with id-Q"),
        (ID, "prefix", AclOperation.DESCRIBE, "Write on the transactional ids that begin with id-Q"),
    ],
)
def test_an_error_names_the_missing_right(
    kafka: Kafka,
    kind: ResourceType,
    resource: str,
    operation: AclOperation,
    named: str,
    has_control_topic: bool,
) -> None:
    sink = Sink(kafka.bootstrap)
    if has_control_topic:
        sink.create(sink.control, PARTITIONS)
    sink.deny(kind, getattr(sink, resource), operation)
    if operation is AclOperation.CREATE:
        # The right to create all topics would be enough.
        sink.deny(ResourceType.BROKER, "kafka-cluster", operation)
    if operation is (AclOperation.CREATE if has_control_topic else AclOperation.DESCRIBE_CONFIGS):
        # A topic that exists is not created, and the settings of a new one are known.
        assert sink.write() == 1
        return
    with pytest.raises(ClientError) as caught:
        sink.write()
    text = str(caught.value).replace(sink.query, "Q")
    assert text.endswith(f". delivery=exactly-once needs the operation {named}"), text


@pytest.mark.parametrize("operation", [AclOperation.WRITE, AclOperation.DESCRIBE])
def test_an_error_of_the_delivery_at_least_once_names_the_missing_right(
    kafka: Kafka, operation: AclOperation
) -> None:
    sink = Sink(kafka.bootstrap)
    sink.deny(TOPIC, sink.target, operation)
    options = parse_sink_options({**sink.given, "delivery": "at-least-once"}, streaming=True)
    with pytest.raises(ClientError) as caught:
        send_batches(
            options, ("key", "value"), [pa.RecordBatch.from_pydict({"key": [b"1"], "value": [b"1"]})]
        )
    needs = f". delivery=at-least-once needs the operation Write on the topic {sink.target}"
    assert str(caught.value).endswith(needs)


def test_nothing_is_missing_without_a_denial(kafka: Kafka) -> None:
    assert Sink(kafka.bootstrap).write() == 1
