"""``tidemill consume`` with unreadable partitions, and the errors of their metadata."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import click
import pytest

from tidemill.broker.controller_request_batch import ControllerRequestBatch
from tidemill.broker.controller_request_handler import _partitions_after
from tidemill.cli.consume import check_readable
from tidemill.client import Consumer
from tidemill.coordination.cluster_image import BrokerImage
from tidemill.coordination.nodes import BrokerRegistration
from tidemill.coordination.topic_image import PartitionImage
from tidemill.model.errors import ErrorCode
from tidemill.model.event_loop_slices import run_at_once
from tidemill.model.types import TopicPartition
from unpaused import requests_in

BAD = TopicPartition("t", 1)


def test_the_wait_for_an_end_is_one_minute_at_most() -> None:
    found: dict[TopicPartition, tuple[str, float]] = {}
    consumer: Any = SimpleNamespace(partition_errors=lambda: found)
    assert not check_readable(consumer)
    found[BAD] = ("LEADER_NOT_AVAILABLE", 2.0)
    assert check_readable(consumer)
    found[BAD] = ("LEADER_NOT_AVAILABLE", 61.0)
    with pytest.raises(click.ClickException, match="t-1 cannot be read for 61 s: LEADER_NOT_AVAILABLE"):
        check_readable(consumer)


def test_a_consumer_reports_its_unreadable_partitions() -> None:
    with Consumer("127.0.0.1:1") as consumer:
        good = TopicPartition("t", 0)
        consumer.assign([good, BAD])
        fetcher, position = consumer._fetcher, consumer._subscriptions.positions[BAD]
        response: Any = SimpleNamespace(
            error=ErrorCode.KAFKA_STORAGE_ERROR,
            high_watermark=3,
            last_stable_offset=3,
            log_start_offset=0,
            preferred_replica=-1,
            start=0,
            end=0,
        )
        fetcher._handle_partition(BAD, position, 0, response, 11)
        ((item, (error, seconds)),) = consumer.partition_errors().items()
        assert (item, error) == (BAD, "KAFKA_STORAGE_ERROR")
        assert seconds >= 0
        response.error = ErrorCode.NONE
        fetcher._handle_partition(BAD, position, 0, response, 11)
        assert consumer.partition_errors() == {}
        # The metadata has the error as well; positions are not looked up there, so that the others do not
        # wait.
        parts: Any = [SimpleNamespace(leader=1), SimpleNamespace(leader=-1)]
        topic: Any = SimpleNamespace(partitions=parts)
        consumer._network_client.topics["t"] = topic
        assert {item: error for item, (error, _) in consumer.partition_errors().items()} == {
            BAD: "LEADER_NOT_AVAILABLE"
        }


def test_all_brokers_receive_the_offline_replicas() -> None:
    command = ControllerRequestBatch()
    living = {broker: BrokerImage(BrokerRegistration(broker, ()), 7) for broker in (1, 2)}
    image: Any = SimpleNamespace(brokers=living, controller_id=2, controller_epoch=4)
    command.image = image
    failed = PartitionImage(0, -1, 3, [1, 2, 3], [1], 5, offline=frozenset({1}))
    command.metadata = {("t", bytes(16)): {0: failed}}
    ((_, request),) = requests_in(command, living[1], "PLAINTEXT")
    (topic,) = request.topic_states
    assert topic.partition_states[0].offline_replicas == [1, 3]
    (known,) = run_at_once(_partitions_after(None, topic, {1, 2}))
    assert known.offline == {1}  # The list of brokers shows the live brokers.
    assert (known.leader, known.replicas) == (-1, [1, 2, 3])
