"""Group requests with thousands of items do not block the event loop."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_groups_handlers import TOPIC_ID, HandlerFixture, topic

from tidemill.broker.api_registry import APIS
from tidemill.broker.large_requests import REQUEST_SLICE_S, LargeRequestQueue
from tidemill.broker.metadata_cache import MetadataCache
from tidemill.broker.request_context import ANONYMOUS, RequestContext
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.model.errors import ErrorCode
from tidemill.net.memory_pool import UNBOUNDED, MemoryPool
from tidemill.net.peer import Listener, Peer
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
)
from tidemill.wire.schema import Struct

ITEMS = 3000
HELD_MAX = 20
"""The maximum average of items between two pauses: the time of a slice is checked after each item."""


class SteppedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time advances by a tenth of a slice with every read of the clock."""

    now = 0.0

    def time(self) -> float:
        self.now += REQUEST_SLICE_S / 10
        return self.now


def fetch_of_partitions(version: int) -> OffsetFetchRequest:
    indexes = list(range(ITEMS))
    if version < 8:
        asked = OffsetFetchRequestTopic(name="t", partition_indexes=indexes)
        return OffsetFetchRequest(group_id="g", topics=[asked])
    listed = OffsetFetchRequestTopic(name="t", partition_indexes=indexes)
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=[listed])])


def fetch_of_topics(version: int) -> OffsetFetchRequest:
    if version < 8:
        asked = [OffsetFetchRequestTopic(name=f"t{n}", partition_indexes=[0]) for n in range(ITEMS)]
        return OffsetFetchRequest(group_id="g", topics=asked)
    listed = [OffsetFetchRequestTopic(name=f"t{n}", partition_indexes=[0]) for n in range(ITEMS)]
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


async def answered(fixture: HandlerFixture, key: ApiKey, version: int, request: Struct) -> tuple[Any, int]:
    """The response, and the number of turns of the event loop before it."""
    peer = Peer(Listener("L", "h", 1), ANONYMOUS, "10.0.0.9", 5)
    context = RequestContext(peer, "app", key, version, 1)
    context.queue = LargeRequestQueue(MemoryPool(asyncio.get_running_loop(), UNBOUNDED))
    broker = SimpleNamespace(
        group_coordinator=fixture.service,
        metadata_cache=fixture.metadata,
        store=fixture.store,
        cluster=None,
    )
    outcome = APIS[key].handle(broker, context, request)
    assert inspect.isawaitable(outcome), "all was done at once"
    pending = asyncio.ensure_future(outcome)
    turns = 0
    while not pending.done():
        await asyncio.sleep(0)
        turns += 1
    context.slices.end()
    return pending.result(), turns


@pytest.mark.parametrize(
    ("key", "version", "request_of"),
    CASES,
    ids=[f"{key.name}-{version}-{request_of.__name__}" for key, version, request_of in CASES],
)
def test_a_request_with_thousands_of_items_is_processed_in_slices(
    tmp_path: Path, key: ApiKey, version: int, request_of: Any
) -> None:
    async def story() -> tuple[Any, int]:
        async with HandlerFixture() as fixture:
            fixture.metadata = MetadataCache(ClusterImage(topics={"t": topic("t", TOPIC_ID, ITEMS)}))
            fixture.store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
            try:
                return await answered(fixture, key, version, request_of(version))
            finally:
                await fixture.store.close()

    with asyncio.Runner(loop_factory=SteppedLoop) as runner:
        answer, turns = runner.run(story())
    assert turns >= ITEMS // HELD_MAX
    assert answer is not None
    if request_of is fetch_of_partitions and version == 0:
        codes = [one.error_code for one in answer.topics[0].partitions]
        assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * ITEMS
