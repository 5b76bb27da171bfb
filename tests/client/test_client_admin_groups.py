"""The group calls of the admin client: offsets are read, set, reset and deleted; members; lag."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tidemill.client import Admin, Consumer, Producer, RangeReader, TopicPartition
from tidemill.client.admin import HIGH_WATERMARK
from tidemill.client.connection import Connection
from tidemill.client.errors import ClientError
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.model.errors import ErrorCode
from tidemill.testing import Broker
from tidemill.wire.apis import ApiKey, ResponseT
from tidemill.wire.messages.consumer_group_describe import ConsumerGroupDescribeResponse, DescribedGroup
from tidemill.wire.messages.describe_groups import DescribedGroup as OlderGroup
from tidemill.wire.messages.describe_groups import DescribeGroupsResponse
from tidemill.wire.schema import Struct

NewTopic = Callable[..., str]


def fill(address: str, topic: str, *counts: int) -> list[TopicPartition]:
    """Writes that many records to each partition, with timestamps from 1000 ms on; returns the partitions."""
    with Producer(address) as producer:
        for partition, count in enumerate(counts):
            for at in range(count):
                producer.send(topic, b"v", partition=partition, timestamp_ms=1000 + at).result(10)
    return [TopicPartition(topic, partition) for partition in range(len(counts))]


def offsets(admin: Admin, group: str) -> dict[TopicPartition, int]:
    return {item: at.offset for item, at in admin.group_offsets(group).items()}


def test_offsets_of_a_group_are_set_read_and_deleted(admin: Admin, new_topic: NewTopic, group: str) -> None:
    topic = new_topic(3)
    first, second, third = (TopicPartition(topic, at) for at in range(3))
    admin.alter_group_offsets(group, {first: 5, second: OffsetAndMetadata(7, 3, "note")})
    found = admin.group_offsets(group)
    assert offsets(admin, group) == {first: 5, second: 7}
    assert [(at.leader_epoch, at.metadata) for at in (found[first], found[second])] == [(-1, ""), (3, "note")]
    assert admin.group_offsets(group, [second, third]) == {second: found[second]}
    admin.delete_group_offsets(group, [first])
    assert offsets(admin, group) == {second: 7}
    admin.delete_group(group)
    assert admin.group_offsets(group) == {}
    with pytest.raises(ClientError) as gone:
        admin.delete_group(group)
    assert gone.value.code == ErrorCode.GROUP_ID_NOT_FOUND
    with pytest.raises(ClientError) as unknown:
        admin.delete_group_offsets(group, [first])
    assert unknown.value.code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_reset_and_a_lookup_include_partitions_that_were_added_meanwhile(
    admin: Admin, broker_address: str, new_topic: NewTopic, group: str
) -> None:
    """Also without metadata.max.age.ms having passed since the client read the metadata of the topic."""
    topic = new_topic(1)
    first, third = TopicPartition(topic, 0), TopicPartition(topic, 2)
    with Admin(broker_address) as looking, Admin(broker_address) as resetting:
        for other in (looking, resetting):
            assert other.list_offsets({first: "latest"})[first].offset == 0
        admin.create_partitions(topic, 3)
        assert looking.list_offsets({third: "latest"})[third].offset == 0
        with pytest.raises(ClientError, match=r"the topic has 3 partitions"):
            looking.list_offsets({TopicPartition(topic, 3): "latest"})
        with pytest.raises(ClientError, match=r"the topic has 3 partitions"):
            looking.list_offsets({TopicPartition(topic, -1): "latest"})
        assert [item.partition for item in resetting.reset_group_offsets(group, [topic])] == [0, 1, 2]


def test_a_reset_is_limited_to_the_range_of_the_log(
    admin: Admin, broker_address: str, new_topic: NewTopic, group: str
) -> None:
    topic = new_topic(2)
    first, second = fill(broker_address, topic, 6, 4)
    admin.delete_records({first: 2})
    admin.alter_group_offsets(group, {first: 4})
    for arguments, expected in (
        ({"to": "earliest"}, 2),
        ({"to": "latest"}, 6),
        ({"to": 3}, 3),
        ({"to": 0}, 2),
        ({"to": 99}, 6),
        ({"shift_by": 1}, 5),
        ({"shift_by": -1}, 3),
        ({"shift_by": -99}, 2),
        ({"timestamp_ms": 1003}, 3),
        ({"timestamp_ms": 1000}, 2),
        ({"timestamp_ms": 9999}, 6),
    ):
        assert admin.reset_group_offsets(group, dry_run=True, **arguments) == {first: (4, expected)}
    assert offsets(admin, group) == {first: 4}
    with pytest.raises(ValueError, match="reset to 'middle': use earliest, latest or an offset"):
        admin.reset_group_offsets(group, to="middle")
    both = {first: (4, 5), second: (None, 1)}
    assert admin.reset_group_offsets(group, [topic], shift_by=1) == both
    assert offsets(admin, group) == {first: 5, second: 1}
    assert admin.reset_group_offsets(group, partitions=[second], to="latest") == {second: (1, 4)}
    assert offsets(admin, group) == {first: 5, second: 4}


def test_lag_covers_committed_and_assigned_partitions(
    admin: Admin, broker_address: str, new_topic: NewTopic, group: str
) -> None:
    topic = new_topic(2)
    first, second = fill(broker_address, topic, 6, 4)
    admin.delete_records({first: 2})
    admin.alter_group_offsets(group, {first: 5})
    (row,) = admin.group_lag(group)
    assert tuple(row) == (topic, 0, 5, 2, 6, 1, "", "", "")
    admin.alter_group_offsets(group, {first: 99})
    assert admin.group_lag(group)[0].lag == 0
    admin.alter_group_offsets(group, {first: 6})
    with Consumer(broker_address, group_id=group, client_id="reader", auto_offset_reset="latest") as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 30
        while not consumer.assignment() and time.monotonic() < deadline:
            consumer.poll(0.1)
        description = admin.describe_group(group)
        (member,) = description.members
        assert (description.group_id, description.state, description.protocol_type) == (
            group,
            "Stable",
            "consumer",
        )
        assert (member.client_id, sorted(member.partitions)) == ("reader", [first, second])
        rows = admin.group_lag(group)
        assert [(one.partition, one.member_id, one.client_id) for one in rows] == [
            (0, member.member_id, "reader"),
            (1, member.member_id, "reader"),
        ]
        assert rows[0].lag == 0
        for call in (
            lambda: admin.alter_group_offsets(group, {first: 3}),
            lambda: admin.delete_group(group),
        ):
            with pytest.raises(ClientError) as refused:
                call()
            assert refused.value.code == ErrorCode.NON_EMPTY_GROUP
        with pytest.raises(ClientError) as subscribed:
            admin.delete_group_offsets(group, [first])
        assert subscribed.value.code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        admin.remove_member(group, member_id=member.member_id)
        with pytest.raises(ClientError) as stranger:
            admin.remove_member(group, member_id="nobody")
        assert stranger.value.code == ErrorCode.UNKNOWN_MEMBER_ID
    deadline = time.monotonic() + 30
    while admin.describe_group(group).members:
        assert time.monotonic() < deadline, "the member is still in the group"


def test_the_lag_on_broker_0_is_known() -> None:
    with Broker({"node.id": "0"}) as broker, Admin(broker.bootstrap) as admin:
        admin.create_topic("t", 1, 1)
        (item,) = fill(broker.bootstrap, "t", 3)
        admin.alter_group_offsets("g", {item: 1})
        (row,) = admin.group_lag("g")
        assert (row.committed, row.end, row.lag) == (1, 3, 2)


def test_records_are_deleted_up_to_the_high_watermark(
    admin: Admin, broker_address: str, new_topic: NewTopic
) -> None:
    topic = new_topic(2)
    first, second = fill(broker_address, topic, 3, 2)
    assert admin.delete_records({first: HIGH_WATERMARK, second: 1}) == {first: 3, second: 1}
    assert admin.list_offsets({first: "earliest"})[first].offset == 3


def test_an_unknown_group_has_no_lag_and_no_description(admin: Admin, group: str) -> None:
    for call in (admin.describe_group, admin.group_lag):
        with pytest.raises(ClientError, match=f"cannot describe group '{group}': GROUP_ID_NOT_FOUND"):
            call(group)


def test_a_commit_waits_for_a_silent_coordinator_up_to_its_timeout() -> None:
    with Broker() as broker, RangeReader(broker.bootstrap) as reader:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t")
        item = TopicPartition("t", 0)
        reader.commit("g", {item: 0})
        broker.pause()
        began = time.monotonic()
        with pytest.raises(ClientError):
            reader.commit("g", {item: 1}, 1.0)
        assert time.monotonic() - began < 20
        broker.resume()


def test_committed_offsets_wait_ten_seconds_for_a_silent_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Broker() as broker, Consumer(broker.bootstrap, group_id="g") as consumer:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t")
        item = TopicPartition("t", 0)
        assert consumer.committed([item]) == {}
        coordinator = next(iter(consumer._network_client.nodes))
        monkeypatch.setattr(consumer._network_client, "find_coordinator", lambda *_: coordinator)
        broker.pause()
        began = time.monotonic()
        with pytest.raises(ClientError):
            consumer.committed([item], timeout=1.0)
        assert time.monotonic() - began < 25
        broker.resume()


class NewerCoordinator:
    """A coordinator without a classic group of the name, with ``newer`` as the group of KIP-848."""

    address, node_id = "there:9092", 7

    def __init__(self, newer: DescribedGroup) -> None:
        self.newer = newer

    def supports(self, key: ApiKey) -> bool:
        return True

    only_result = Connection.only_result

    def call(self, key: ApiKey, message: Struct, response_type: type[ResponseT], **options: Any) -> Struct:
        if key == ApiKey.CONSUMER_GROUP_DESCRIBE:
            return ConsumerGroupDescribeResponse(groups=[self.newer])
        older = OlderGroup(error_code=ErrorCode.GROUP_ID_NOT_FOUND, group_id="g")
        return DescribeGroupsResponse(groups=[older])


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.NONE, None),
        (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.GROUP_ID_NOT_FOUND),
        (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.GROUP_ID_NOT_FOUND),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    ],
)
def test_a_group_of_the_consumer_protocol_is_described(
    monkeypatch: pytest.MonkeyPatch, code: ErrorCode, told: ErrorCode | None
) -> None:
    newer = DescribedGroup(error_code=code, group_id="g", group_state="Stable", assignor_name="uniform")
    coordinator = NewerCoordinator(newer)
    monkeypatch.setattr("tidemill.client.admin.call_coordinator", lambda *given: given[-1](coordinator))
    with Admin("unused:1") as admin:
        if told is None:
            found = admin.describe_group("g")
            assert (found.state, found.assignor, found.coordinator) == ("Stable", "uniform", 7)
            return
        with pytest.raises(ClientError) as caught:
            admin.describe_group("g")
        assert caught.value.code == told
