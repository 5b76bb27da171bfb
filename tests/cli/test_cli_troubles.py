"""``tidemill consume`` about partitions that cannot be read, and what the metadata tells of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import click
import pytest

from tidemill.broker.commanding import Command, requests_of
from tidemill.broker.commands import _partitions_after
from tidemill.cli.consume import refuse_lasting_trouble
from tidemill.client import Consumer
from tidemill.coordination.image import BrokerImage, PartitionImage
from tidemill.coordination.nodes import BrokerRegistration
from tidemill.model.errors import ErrorCode
from tidemill.model.slices import in_one_go
from tidemill.model.types import TopicPartition

BAD = TopicPartition("t", 1)


def test_an_end_is_waited_for_a_minute_at_most() -> None:
    found: dict[TopicPartition, tuple[str, float]] = {}
    consumer: Any = SimpleNamespace(troubles=lambda: found)
    assert not refuse_lasting_trouble(consumer)
    found[BAD] = ("LEADER_NOT_AVAILABLE", 2.0)
    assert refuse_lasting_trouble(consumer)
    found[BAD] = ("LEADER_NOT_AVAILABLE", 61.0)
    with pytest.raises(click.ClickException, match="t-1 cannot be read for 61 s: LEADER_NOT_AVAILABLE"):
        refuse_lasting_trouble(consumer)


def test_a_consumer_knows_which_of_its_partitions_cannot_be_read() -> None:
    with Consumer("127.0.0.1:1") as consumer:
        good = TopicPartition("t", 0)
        consumer.assign([good, BAD])
        fetcher, place = consumer._fetcher, consumer._places[BAD]
        answer: Any = SimpleNamespace(
            error_code=ErrorCode.KAFKA_STORAGE_ERROR,
            high_watermark=3,
            last_stable_offset=3,
            log_start_offset=0,
            preferred_replica=-1,
            start=0,
            end=0,
        )
        fetcher._place_answer(BAD, place, 0, answer)
        ((item, (error, seconds)),) = consumer.troubles().items()
        assert (item, error) == (BAD, "KAFKA_STORAGE_ERROR")
        assert seconds >= 0
        answer.error_code = ErrorCode.NONE
        fetcher._place_answer(BAD, place, 0, answer)
        assert consumer.troubles() == {}
        # The metadata tells, too; positions are not looked up there, so that the others do not wait.
        parts: Any = [SimpleNamespace(leader=1), SimpleNamespace(leader=-1)]
        topic: Any = SimpleNamespace(partitions=parts)
        consumer._cluster.topics["t"] = topic
        assert {item: error for item, (error, _) in consumer.troubles().items()} == {
            BAD: "LEADER_NOT_AVAILABLE"
        }


def test_all_brokers_are_told_which_replicas_are_offline() -> None:
    command = Command()
    living = {one: BrokerImage(BrokerRegistration(one, ()), 7) for one in (1, 2)}
    image: Any = SimpleNamespace(brokers=living, controller_id=2, controller_epoch=4)
    command.image = image
    failed = PartitionImage(0, -1, 3, [1, 2, 3], [1], 5, offline=frozenset({1}))
    command.metadata = {("t", bytes(16)): {0: failed}}
    ((_, request),) = requests_of(command, living[1], "PLAINTEXT")
    (topic,) = request.topic_states
    assert topic.partition_states[0].offline_replicas == [1, 3]
    (known,) = in_one_go(_partitions_after(None, topic, {1, 2}))
    assert known.offline == {1}  # who does not live is told by the list of brokers
    assert (known.leader, known.replicas) == (-1, [1, 2, 3])
