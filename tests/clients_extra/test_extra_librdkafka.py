"""Releases of librdkafka that misread message formats v0 and v1 by late versions of Fetch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.testing import Broker

FORMATS = ("0.9.0", "0.10.2", "3.0-IV1")
RELEASES = ("2.5.3", "2.8.2", "2.15.1")
"""Of confluent-kafka, with librdkafka inside: the first without older faults, one between, and the last."""
TIMEOUT_S = 120

PROGRAM = """
import sys, time
from confluent_kafka import Consumer, Producer, version
from confluent_kafka.admin import AdminClient, NewTopic

bootstrap, topic, message_format = sys.argv[1:]
client = {"bootstrap.servers": bootstrap, "client.id": "reader"}
wanted = NewTopic(topic, 1, 1, config={"message.format.version": message_format})
admin = AdminClient(client)
admin.create_topics([wanted])[topic].result(20)
producer = Producer(client)
sent = [(b"key %d" % n, b"value %d" % n) for n in range(20)]
for key, value in sent:
    producer.produce(topic, value, key)
assert producer.flush(20) == 0
consumer = Consumer({**client, "group.id": topic, "auto.offset.reset": "earliest"})
consumer.subscribe([topic])
read = []
deadline = time.monotonic() + 20
while len(read) < len(sent) and time.monotonic() < deadline:
    message = consumer.poll(0.5)
    if message is not None:
        assert message.error() is None, message.error()
        read.append((message.key(), message.value()))
consumer.close()
assert read == sent, read
print(version() if isinstance(version(), str) else version()[0])
"""


@pytest.mark.parametrize("release", RELEASES)
def test_a_librdkafka_that_misreads_old_formats_reads_them_here(
    extra_broker: Broker, released: Callable[[str], Path], release: str
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(released(f"confluent-kafka=={release}"))}
    for message_format in FORMATS:
        command = (sys.executable, "-c", PROGRAM, extra_broker.bootstrap)
        done = subprocess.run(
            [*command, f"old-{release}-{message_format}", message_format],
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, f"{message_format}: {done.stderr}"
        assert done.stdout.strip() == release
    told = [line for line in extra_broker.log.splitlines() if f"confluent-kafka-python {release}-" in line]
    assert len(told) == 1  # The log line appears once per client, not once per connection.
    assert "Fetch up to version 11 is announced to it" in told[0]
