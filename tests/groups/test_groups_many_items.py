"""Requests about groups that name thousands of items: the loop does its other work meanwhile."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_groups_handlers import TOPIC_ID, Play, topic

from tidemill.broker.context import ANONYMOUS, DEFAULT_TENANT, Listener, Peer, RequestContext
from tidemill.broker.metadata import MetadataCache
from tidemill.broker.registry import APIS
from tidemill.broker.request_slices import SLICE_S, Lane
from tidemill.coordination.embedded import EmbeddedStore
from tidemill.coordination.image import ClusterImage
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.describe_groups import DescribeGroupsRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tidemill.wire.schema import Struct

ITEMS = 3000
HELD_MAX = 20
"""So many items a pause, on average: a slice is looked at after each, and has sixteen looks at least."""


class SteppedLoop(asyncio.SelectorEventLoop):
    """Time goes on by a tenth of a slice with every look at the clock."""

    now = 0.0

    def time(self) -> float:
        self.now += SLICE_S / 10
        return self.now


def fetch_of_partitions(version: int) -> OffsetFetchRequest:
    indexes = list(range(ITEMS))
    if version < 8:
        asked = OffsetFetchRequestTopic(name="t", partition_indexes=indexes)
        return OffsetFetchRequest(group_id="g", topics=[asked])
    listed = OffsetFetchRequestTopics(name="t", partition_indexes=indexes)
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[listed])])


def fetch_of_topics(version: int) -> OffsetFetchRequest:
    if version < 8:
        asked = [OffsetFetchRequestTopic(name=f"t{n}", partition_indexes=[0]) for n in range(ITEMS)]
        return OffsetFetchRequest(group_id="g", topics=asked)
    listed = [OffsetFetchRequestTopics(name=f"t{n}", partition_indexes=[0]) for n in range(ITEMS)]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=listed)])


def fetch_of_groups(version: int) -> OffsetFetchRequest:
    groups = [OffsetFetchRequestGroup(group_id=f"g{n}", topics=[]) for n in range(ITEMS)]
    return OffsetFetchRequest(groups=groups)


def commit_of_partitions(version: int) -> OffsetCommitRequest:
    items = [OffsetCommitRequestPartition(partition_index=n, committed_offset=n) for n in range(ITEMS)]
    return OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=items)])


def find_of_groups(version: int) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(coordinator_keys=[f"g{n}" for n in range(ITEMS)])


def describe_of_groups(version: int) -> DescribeGroupsRequest:
    return DescribeGroupsRequest(groups=[f"g{n}" for n in range(ITEMS)])


CASES: list[tuple[ApiKey, int, Any]] = [
    *((ApiKey.OFFSET_FETCH, version, fetch_of_partitions) for version in (0, 1, 7, 8)),
    *((ApiKey.OFFSET_FETCH, version, fetch_of_topics) for version in (0, 1, 7, 8)),
    (ApiKey.OFFSET_FETCH, 8, fetch_of_groups),
    *((ApiKey.OFFSET_COMMIT, version, commit_of_partitions) for version in (0, 1, 8)),
    (ApiKey.FIND_COORDINATOR, 4, find_of_groups),
    (ApiKey.DESCRIBE_GROUPS, 5, describe_of_groups),
]


async def answered(play: Play, key: ApiKey, version: int, request: Struct) -> tuple[Any, int]:
    """The answer, and how often the loop had its turn before it came."""
    peer = Peer(Listener("L", "h", 1), DEFAULT_TENANT, ANONYMOUS, "10.0.0.9", 5)
    context = RequestContext(peer, "app", key, version, 1, None)
    context.lane = Lane()
    broker = SimpleNamespace(groups=play.service, metadata=play.metadata, store=play.store, held_answers=None)
    outcome = APIS[key].handler()(broker, context, request)
    assert inspect.isawaitable(outcome), "all was done at once"
    pending = asyncio.ensure_future(outcome)
    turns = 0
    while not pending.done():
        await asyncio.sleep(0)
        turns += 1
    context.turns.end()
    return pending.result(), turns


@pytest.mark.parametrize(
    ("key", "version", "request_of"),
    CASES,
    ids=[f"{key.name}-{version}-{request_of.__name__}" for key, version, request_of in CASES],
)
def test_others_are_served_while_a_request_names_thousands(
    tmp_path: Path, key: ApiKey, version: int, request_of: Any
) -> None:
    async def story() -> tuple[Any, int]:
        async with Play() as play:
            play.metadata = MetadataCache(ClusterImage(topics={"t": topic("t", TOPIC_ID, ITEMS)}))
            play.store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
            try:
                return await answered(play, key, version, request_of(version))
            finally:
                await play.store.close()

    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        answer, turns = runner.run(story())
    assert turns >= ITEMS // HELD_MAX
    assert answer is not None
    if request_of is fetch_of_partitions and version == 0:
        codes = [one.error_code for one in answer.topics[0].partitions]
        assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * ITEMS
