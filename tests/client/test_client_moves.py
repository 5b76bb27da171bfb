"""The admin client's requests for reassignments and elections. Other tests show their effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.client import Admin
from tidemill.client.connection import Connection
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey, ResponseT
from tidemill.wire.messages import elect_leaders
from tidemill.wire.schema import Struct

NewTopic = Callable[..., str]


def codes(outcomes: dict[TopicPartition, Any]) -> list[ErrorCode | None]:
    return [problem and problem.code for problem in outcomes.values()]


def test_each_partition_of_a_reassignment_has_a_result(admin: Admin, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    (own,) = admin.describe_topic(topic).partitions[0].replicas
    first, second, none = (TopicPartition(topic, number) for number in (0, 1, 7))
    outcomes = admin.alter_reassignments({first: [own], second: [own, own + 1000], none: [own]})
    assert outcomes[first] is None
    assert codes({item: outcomes[item] for item in (second, none)}) == [
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert str(outcomes[second]).startswith(f"cannot move {second}: INVALID_REPLICA_ASSIGNMENT (")
    assert codes(admin.alter_reassignments({first: None})) == [ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
    assert admin.list_reassignments() == {}
    assert admin.list_reassignments([first, none]) == {}


def test_replicas_are_placed_in_directories_of_their_broker(admin: Admin, new_topic: NewTopic) -> None:
    item = TopicPartition(new_topic(1), 0)
    (own,) = admin.describe_topic(item.topic).partitions[0].replicas
    (directory,) = admin.describe_log_dirs([own])[own]
    assert admin.alter_replica_log_dirs(own, {item: directory.path}) == {item: None}
    assert codes(admin.alter_replica_log_dirs(own, {item: "/nowhere"})) == [ErrorCode.LOG_DIR_NOT_FOUND]


def test_no_election_for_preferred_leaders(admin: Admin, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    item = TopicPartition(topic, 0)
    assert item not in admin.elect_leaders()
    assert codes(admin.elect_leaders([item])) == [ErrorCode.ELECTION_NOT_NEEDED]
    assert codes(admin.elect_leaders([item], unclean=True)) == [ErrorCode.ELECTION_NOT_NEEDED]
    missing = TopicPartition(topic, 5)
    assert codes(admin.elect_leaders([missing])) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


def test_an_election_is_retried_if_the_controller_has_moved(
    admin: Admin, new_topic: NewTopic, monkeypatch: Any
) -> None:
    item = TopicPartition(new_topic(1), 0)
    asked: list[ApiKey] = []
    call = Connection.call

    def moved_once(
        self: Connection, key: ApiKey, message: Struct, response_type: type[ResponseT], **others: Any
    ) -> Struct:
        if key != ApiKey.ELECT_LEADERS or asked:
            return call(self, key, message, response_type, **others)
        asked.append(key)
        result = elect_leaders.PartitionResult(
            partition_id=0, error_code=ErrorCode.NOT_CONTROLLER, error_message=None
        )
        return elect_leaders.ElectLeadersResponse(
            error_code=0,
            replica_election_results=[
                elect_leaders.ReplicaElectionResult(topic=item.topic, partition_result=[result])
            ],
        )

    monkeypatch.setattr(Connection, "call", moved_once)
    assert codes(admin.elect_leaders([item])) == [ErrorCode.ELECTION_NOT_NEEDED]
    assert asked == [ApiKey.ELECT_LEADERS]
