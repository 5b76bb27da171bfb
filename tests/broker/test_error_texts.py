"""The error texts of responses are limited."""

from __future__ import annotations

import pytest

from tidemill.broker.error_texts import TEXTS_CHARACTERS_MAX, bound_texts_in_slices
from tidemill.model.event_loop_slices import run_at_once
from tidemill.wire.apis import API, response_class
from tidemill.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from tidemill.wire.messages.describe_groups import DescribedGroup, DescribeGroupsResponse
from tidemill.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from tidemill.wire.messages.list_groups import ListGroupsResponse


def test_each_topic_of_a_response_has_one_error_text() -> None:
    response = AlterPartitionReassignmentsResponse(
        error_message="of all",
        responses=[
            ReassignableTopicResponse(
                name=name,
                partitions=[
                    ReassignablePartitionResponse(
                        partition_index=index,
                        error_code=3,
                        error_message=None if index < 2 else f"{name} {index}",
                    )
                    for index in range(50)
                ],
            )
            for name in ("a", "b")
        ],
    )
    run_at_once(bound_texts_in_slices(response))
    assert response.error_message == "of all"
    for topic in response.responses:
        texts = [one.error_message for one in topic.partitions]
        assert texts == [None, None, f"{topic.name} 2", *[None] * 47]
        assert {one.error_code for one in topic.partitions} == {3}


def test_the_error_texts_of_a_response_are_limited() -> None:
    response = FindCoordinatorResponse(
        coordinators=[Coordinator(key=f"{n}", error_code=53, error_message="x" * 1000) for n in range(5000)]
    )
    run_at_once(bound_texts_in_slices(response))
    texts = [one.error_message for one in response.coordinators]
    kept = sum(len(text or "") for text in texts)
    assert TEXTS_CHARACTERS_MAX <= kept < TEXTS_CHARACTERS_MAX + 1000
    assert texts[0] is not None
    assert texts[-1] is None


def test_responses_with_few_errors_are_unchanged() -> None:
    described = DescribeGroupsResponse(
        groups=[DescribedGroup(group_id="a"), DescribedGroup(group_id="b", error_message="not found")]
    )
    run_at_once(bound_texts_in_slices(described))
    assert [one.error_message for one in described.groups] == [None, "not found"]
    run_at_once(bound_texts_in_slices(ListGroupsResponse()))


@pytest.mark.parametrize("key", sorted(API))
def test_the_error_text_of_every_response_is_nullable(key: int) -> None:
    """A text that is not nullable in some version cannot be removed."""
    classes = [response_class(key)]
    for cls in classes:
        for one in cls.fields_:
            if isinstance(one.element, type):
                classes.append(one.element)
            if one.name == "error_message" and cls is not classes[0]:
                assert one.nullable, cls
