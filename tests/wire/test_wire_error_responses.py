"""Responses with an error, built from their requests.

``tests/broker/test_not_served.py`` compares those of unserved APIs with Apache Kafka's.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from wire_values import message_of

from tidemill.model.errors import ErrorCode
from tidemill.model.event_loop_slices import ITEMS_PER_SLICE, run_at_once
from tidemill.wire.apis import API, ApiKey, request_class, response_class
from tidemill.wire.codec import decode, encode
from tidemill.wire.error_responses import ITEM_MAPS, error_response_in_slices
from tidemill.wire.messages import (
    alter_replica_log_dirs,
    alter_user_scram_credentials,
    delete_topics,
    elect_leaders,
    produce,
)
from tidemill.wire.schema import Struct, UnsupportedByVersion

CODE = ErrorCode.POLICY_VIOLATION
TOPIC_ID = b"t" * 16


def failed(key: ApiKey, version: int, request: Struct) -> Any:
    """Returns the response as a client decodes it."""
    response = run_at_once(error_response_in_slices(key, version, request, CODE, "no"))
    return decode(response_class(key), version, encode(response, version))


@pytest.mark.parametrize("key", sorted(ITEM_MAPS))
def test_a_response_can_be_encoded_in_every_version(key: ApiKey) -> None:
    for version in range(API[key].version_min, API[key].version_max + 1):
        for number in range(3):
            values = random.Random(f"{key} {version} {number}")
            failed(key, version, message_of(values, request_class(key), version))


def test_the_partitions_of_a_produce_response_have_the_error() -> None:
    partitions = [produce.PartitionProduceData(index=index) for index in (3, 4)]
    topic = produce.TopicProduceData(name="t", topic_id=TOPIC_ID, partition_data=partitions)
    request = produce.ProduceRequest(acks=1, timeout_ms=1, topic_data=[topic])
    for version in (3, 8, 13):
        (result,) = failed(ApiKey.PRODUCE, version, request).responses
        assert (result.name, result.topic_id) == (("t", bytes(16)) if version < 13 else ("", TOPIC_ID))
        found = [(one.index, one.error_code, one.base_offset) for one in result.partition_responses]
        assert found == [(3, CODE, -1), (4, CODE, -1)]
        texts = {one.error_message for one in result.partition_responses}
        assert texts == ({"no"} if version >= 8 else {None})


def test_deleted_topics_are_named_by_name_or_by_id() -> None:
    named = delete_topics.DeleteTopicsRequest(topic_names=["a", "b"])
    found = failed(ApiKey.DELETE_TOPICS, 5, named).responses
    assert [(one.name, one.error_code) for one in found] == [("a", CODE), ("b", CODE)]
    state = delete_topics.DeleteTopicState(name=None, topic_id=TOPIC_ID)
    (by_id,) = failed(ApiKey.DELETE_TOPICS, 6, delete_topics.DeleteTopicsRequest(topics=[state])).responses
    assert (by_id.name, by_id.topic_id, by_id.error_code) == (None, TOPIC_ID, CODE)


def test_the_topics_of_all_directories_have_the_error() -> None:
    request = alter_replica_log_dirs.AlterReplicaLogDirsRequest(
        dirs=[
            alter_replica_log_dirs.AlterReplicaLogDir(
                path=f"/{name}",
                topics=[alter_replica_log_dirs.AlterReplicaLogDirTopic(name=name, partitions=[0, 1])],
            )
            for name in ("a", "b")
        ]
    )
    found = failed(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, request).results
    assert [one.topic_name for one in found] == ["a", "b"]
    assert [(one.partition_index, one.error_code) for one in found[1].partitions] == [(0, CODE), (1, CODE)]


def test_a_version_without_a_field_for_the_error_is_refused() -> None:
    request = elect_leaders.ElectLeadersRequest(topic_partitions=None)
    assert failed(ApiKey.ELECT_LEADERS, 1, request).error_code == CODE
    with pytest.raises(UnsupportedByVersion, match="ElectLeadersResponse v0 has no field for the error"):
        failed(ApiKey.ELECT_LEADERS, 0, request)


def test_many_items_are_built_in_slices() -> None:
    count = 4 * ITEMS_PER_SLICE
    request = alter_user_scram_credentials.AlterUserScramCredentialsRequest(
        deletions=[
            alter_user_scram_credentials.ScramCredentialDeletion(name=str(number), mechanism=1)
            for number in range(count)
        ]
    )
    key = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    assert len(list(error_response_in_slices(key, 0, request, CODE, "no"))) == 4
    names = delete_topics.DeleteTopicsRequest(topic_names=["t"] * count)
    assert len(list(error_response_in_slices(ApiKey.DELETE_TOPICS, 5, names, CODE, "no"))) == 4
