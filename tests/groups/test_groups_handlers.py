"""The handlers of the group APIs in all versions, with encoded requests and responses."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from coordinator_fixture import CoordinatorFixture, commit

from tidemill.broker.api_registry import APIS
from tidemill.broker.large_requests import RequestSlices
from tidemill.broker.metadata_cache import MetadataCache
from tidemill.broker.request_context import ANONYMOUS, RequestContext
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.coordinator_runtime.coordinator_effects import TransactionProducer
from tidemill.groups.coordinator_effects import CommitRequest, OffsetToCommit
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.transaction_types import MarkerToWrite, ProducerIdAndEpoch
from tidemill.net.peer import Listener, Peer
from tidemill.wire.apis import ApiKey, request_class, response_class
from tidemill.wire.codec import decode, encode
from tidemill.wire.messages.delete_groups import DeleteGroupsRequest
from tidemill.wire.messages.describe_groups import DescribeGroupsRequest
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.heartbeat import HeartbeatRequest
from tidemill.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidemill.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidemill.wire.messages.list_groups import ListGroupsRequest
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tidemill.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from tidemill.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tidemill.wire.schema import Struct

TOPIC_ID = b"t" * 16
GONE_ID = b"g" * 16


def versions(key: ApiKey) -> list[int]:
    """All versions that the broker supports."""
    api = APIS[key]
    return list(range(api.first, api.last + 1))


def topic(name: str, topic_id: bytes, partitions: int) -> TopicImage:
    images = tuple(PartitionImage(number, 1, 0, [1], [1]) for number in range(partitions))
    return TopicImage(name, topic_id, images, {})


class HandlerFixture(CoordinatorFixture):
    """A coordinator with the handlers of the group APIs."""

    def __init__(self, **config: int) -> None:
        super().__init__(**config)
        self.metadata = MetadataCache(ClusterImage(topics={"t": topic("t", TOPIC_ID, 3)}))
        self.store: EmbeddedStore | None = None

    async def __aenter__(self) -> HandlerFixture:
        await super().__aenter__()
        return self

    def start(self, key: ApiKey, version: int, request: Struct) -> Any:
        """Calls the handler with the encoded and decoded request."""
        peer = Peer(Listener("L", "h", 1), ANONYMOUS, "10.0.0.9", 5)
        context = RequestContext(peer, "app", key, version, 1)
        asked = decode(request_class(key), version, encode(request, version))
        broker = SimpleNamespace(
            group_coordinator=self.service,
            metadata_cache=self.metadata,
            store=self.store,
            cluster=None,
        )
        return APIS[key].handle(broker, context, asked)

    async def ask(self, key: ApiKey, version: int, request: Struct) -> Any:
        """The encoded and decoded response."""
        outcome = self.start(key, version, request)
        if inspect.isawaitable(outcome):
            pending = asyncio.ensure_future(outcome)
            await self.time.advance(10)
            outcome = await pending
        return decode(response_class(key), version, encode(outcome, version))

    async def commit(self, version: int, partitions: dict[int, int], **given: Any) -> list[tuple[int, int]]:
        """The partitions and errors of a commit for topic t and group g."""
        items = [
            OffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata="md"
            )
            for index, offset in partitions.items()
        ]
        name = given.pop("name", "t")
        named = {"topic_id": given.pop("topic_id", TOPIC_ID)} if version >= 10 else {"name": name}
        request = OffsetCommitRequest(
            group_id="g", topics=[OffsetCommitRequestTopic(**named, partitions=items)], **given
        )
        response = await self.ask(ApiKey.OFFSET_COMMIT, version, request)
        return [(one.partition_index, one.error_code) for one in response.topics[0].partitions]

    async def fetch(self, version: int, partitions: list[int] | None = None, **given: Any) -> Any:
        """The response to an OffsetFetch of topic t and group g."""
        if version < 10:
            given.pop("topic_id", None)
        if version < 8:
            topics = (
                None
                if partitions is None
                else [OffsetFetchRequestTopic(name="t", partition_indexes=partitions)]
            )
            return await self.ask(
                ApiKey.OFFSET_FETCH, version, OffsetFetchRequest(group_id="g", topics=topics, **given)
            )
        named = {"topic_id": given.pop("topic_id", TOPIC_ID)} if version >= 10 else {"name": "t"}
        wanted = None
        if partitions is not None:
            wanted = [OffsetFetchRequestTopic(**named, partition_indexes=partitions)]
        groups = [OffsetFetchRequestGroup(group_id="g", topics=wanted)]
        return await self.ask(ApiKey.OFFSET_FETCH, version, OffsetFetchRequest(groups=groups, **given))

    async def member(self, version: int = 9, **given: Any) -> Any:
        """Joins group g. Returns the response."""
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=30_000 if version else -1,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"s")],
            **given,
        )
        response = await self.ask(ApiKey.JOIN_GROUP, version, request)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            request.member_id = response.member_id
            response = await self.ask(ApiKey.JOIN_GROUP, version, request)
        return response


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
async def test_find_coordinator_is_handled_in_every_version(version: int) -> None:
    async with HandlerFixture() as fixture:
        key = {"coordinator_keys": ["g", "h"]} if version >= 4 else {"key": "g"}
        response = await fixture.ask(ApiKey.FIND_COORDINATOR, version, FindCoordinatorRequest(**key))
        found = response.coordinators if version >= 4 else [response]
        ports = [9092 + fixture.partition(group) for group in ("g", "h")]
        assert [(one.node_id, one.host, one.port, one.error_code) for one in found] == [
            (1, "host-of-L", port, 0) for port in ports[: len(found)]
        ]


@pytest.mark.parametrize("version", [1, 4, 6])
@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        (2, ErrorCode.INVALID_REQUEST, "coordinator type 2 does not exist"),
    ],
)
async def test_rejects_other_coordinator_types_with_a_reason(
    version: int, kind: int, error: int, text: str
) -> None:
    async with HandlerFixture() as fixture:
        key = {"coordinator_keys": ["tx"]} if version >= 4 else {"key": "tx"}
        request = FindCoordinatorRequest(key_type=kind, **key)
        response = await fixture.ask(ApiKey.FIND_COORDINATOR, version, request)
        found = response.coordinators[0] if version >= 4 else response
        assert (found.error_code, found.node_id) == (error, -1)
        assert text in found.error_message


async def test_the_response_contains_the_error_of_the_topic_creation() -> None:
    async with HandlerFixture() as fixture:
        fixture.topic.leads = None
        fixture.topic.error = KafkaError("no brokers")
        response = await fixture.ask(ApiKey.FIND_COORDINATOR, 3, FindCoordinatorRequest(key="g"))
        assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "no brokers" in response.error_message


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
async def test_join_group_is_handled_in_every_version(version: int) -> None:
    async with HandlerFixture() as fixture:
        response = await fixture.member(version)
        assert response.error_code == 0
        assert response.member_id.startswith("app-")
        assert (response.generation_id, response.leader) == (1, response.member_id)
        assert (response.protocol_name, [one.metadata for one in response.members]) == ("range", [b"s"])
        assert response.protocol_type == ("consumer" if version >= 7 else None)
        view = fixture.service.describe("g")
        assert not isinstance(view, ErrorCode)
        assert (view.members[0].client_id, view.members[0].client_host) == ("app", "/10.0.0.9")
        shard = fixture.service.runtime.shards[fixture.partition()]
        member = shard.machine.groups["g"].members[response.member_id]
        assert member.rebalance_timeout_ms == (30_000 if version else 10_000)


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
async def test_join_group_with_an_error(version: int) -> None:
    async with HandlerFixture() as fixture:
        response = await fixture.member(version, member_id="stranger")
        assert (response.error_code, response.member_id) == (ErrorCode.UNKNOWN_MEMBER_ID, "stranger")
        assert (response.generation_id, response.leader, response.members) == (-1, "", [])
        assert response.protocol_name == (None if version >= 7 else "")


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
async def test_sync_group_is_handled_in_every_version(version: int) -> None:
    async with HandlerFixture() as fixture:
        joined = await fixture.member()
        given = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")
        request = SyncGroupRequest(
            group_id="g", generation_id=1, member_id=joined.member_id, assignments=[given]
        )
        response = await fixture.ask(ApiKey.SYNC_GROUP, version, request)
        assert (response.error_code, response.assignment) == (0, b"mine")
        assert response.protocol_name == ("range" if version >= 5 else None)
        request.generation_id = 9
        response = await fixture.ask(ApiKey.SYNC_GROUP, version, request)
        assert (response.error_code, response.assignment) == (ErrorCode.ILLEGAL_GENERATION, b"")


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
async def test_heartbeat_is_handled_in_every_version(version: int) -> None:
    async with HandlerFixture() as fixture:
        member = await fixture.stable()
        for generation, error in [(1, ErrorCode.NONE), (2, ErrorCode.ILLEGAL_GENERATION)]:
            request = HeartbeatRequest(group_id="g", generation_id=generation, member_id=member)
            assert (await fixture.ask(ApiKey.HEARTBEAT, version, request)).error_code == error


@pytest.mark.parametrize("version", versions(ApiKey.LEAVE_GROUP))
async def test_leave_group_is_handled_in_every_version(version: int) -> None:
    async with HandlerFixture() as fixture:
        member = await fixture.stable()
        for error in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID):
            if version < 3:
                request = LeaveGroupRequest(group_id="g", member_id=member)
                response = await fixture.ask(ApiKey.LEAVE_GROUP, version, request)
                assert response.error_code == error
                continue
            ids = [MemberIdentity(member_id=member), MemberIdentity(member_id="stranger")]
            request = LeaveGroupRequest(group_id="g", members=ids)
            response = await fixture.ask(ApiKey.LEAVE_GROUP, version, request)
            assert response.error_code == 0
            assert [(one.member_id, one.error_code) for one in response.members] == [
                (member, error),
                ("stranger", ErrorCode.UNKNOWN_MEMBER_ID),
            ]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT)[1:])
async def test_offset_commit_is_handled_in_every_version(version: int) -> None:
    async with HandlerFixture() as fixture:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await fixture.commit(version, {0: 5, 3: 9, 2: 6, -1: 1}) == [
            (0, 0),
            (3, unknown),  # the first partition that does not exist
            (2, 0),
            (-1, unknown),
        ]
        held = (await fixture.service.fetch("g"))[1]["t"]
        assert {index: (one.offset, one.metadata) for index, one in held.items()} == {
            0: (5, "md"),
            2: (6, "md"),
        }
        assert held[0].topic_id == TOPIC_ID
        if version >= 10:
            errors = await fixture.commit(version, {0: 5}, topic_id=GONE_ID)
            assert errors == [(0, ErrorCode.UNKNOWN_TOPIC_ID)]
        else:
            assert await fixture.commit(version, {0: 5}, name="nope") == [(0, unknown)]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT)[1:])
async def test_offset_commit_of_a_member(version: int) -> None:
    async with HandlerFixture() as fixture:
        missing = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
        given: dict[str, Any] = {"generation_id_or_member_epoch": 1, "member_id": "m"}
        assert await fixture.commit(version, {0: 5}, **given) == [(0, missing)]
        given["member_id"] = await fixture.stable()
        assert await fixture.commit(version, {0: 5}, **given) == [(0, 0)]
        given["generation_id_or_member_epoch"] = 2
        assert await fixture.commit(version, {0: 5}, **given) == [(0, ErrorCode.ILLEGAL_GENERATION)]


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_offset_commit_with_a_retention(version: int) -> None:
    async with HandlerFixture() as fixture:
        await fixture.commit(version, {0: 5}, retention_time_ms=1_234)
        held = (await fixture.service.fetch("g"))[1]["t"][0]
        assert held.expire_timestamp_ms == held.commit_timestamp_ms + 1_234


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH)[1:])
async def test_offset_fetch_is_handled_in_every_version(version: int) -> None:
    async with HandlerFixture() as fixture:
        await fixture.commit(8, {0: 5})
        response = await fixture.fetch(version, [0, 1])
        if version >= 8:
            assert [(group.group_id, group.error_code) for group in response.groups] == [("g", 0)]
            response = response.groups[0]
        found = [
            (one.partition_index, one.committed_offset, one.metadata, one.error_code)
            for one in response.topics[0].partitions
        ]
        assert found == [(0, 5, "md", 0), (1, -1, "", 0)]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH)[2:])
async def test_offset_fetch_of_all_topics(version: int) -> None:
    async with HandlerFixture() as fixture:
        await fixture.commit(8, {0: 5, 2: 6})
        response = await fixture.fetch(version)
        if version >= 8:
            response = response.groups[0]
        assert len(response.topics) == 1
        if version >= 10:
            assert response.topics[0].topic_id == TOPIC_ID
        else:
            assert response.topics[0].name == "t"
        found = [(one.partition_index, one.committed_offset) for one in response.topics[0].partitions]
        assert found == [(0, 5), (2, 6)]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH)[2:])
async def test_versions_with_topic_names_return_offsets_of_deleted_topics(version: int) -> None:
    async with HandlerFixture() as fixture:
        await fixture.commit(8, {0: 5})
        fixture.metadata.image = ClusterImage()
        response = await fixture.fetch(version)
        topics = response.groups[0].topics if version >= 8 else response.topics
        assert [one.name for one in topics] == (["t"] if version < 10 else [])


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH)[1:])
async def test_offset_fetch_at_the_wrong_broker(version: int) -> None:
    async with HandlerFixture() as fixture:
        fixture.service.runtime.resign(fixture.partition())
        response = await fixture.fetch(version, [0])
        if version >= 8:
            response = response.groups[0]
        if version >= 2:
            assert response.error_code == ErrorCode.NOT_COORDINATOR
            assert response.topics == []
        else:
            assert response.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR


async def test_offset_fetch_of_several_groups() -> None:
    async with HandlerFixture() as fixture:
        await fixture.commit(8, {0: 5})
        groups = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("g", "other", "")]
        response = await fixture.ask(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=groups))
        assert [(one.group_id, one.error_code, len(one.topics)) for one in response.groups] == [
            ("g", 0, 1),
            ("other", 0, 0),
            ("", 0, 0),
        ]


async def test_offset_fetch_by_topic_id_sees_only_that_topics_offsets() -> None:
    async with HandlerFixture() as fixture:
        await fixture.commit(10, {0: 5})
        response = await fixture.fetch(10, [0], topic_id=GONE_ID)
        partition = response.groups[0].topics[0].partitions[0]
        assert (partition.error_code, partition.committed_offset) == (ErrorCode.UNKNOWN_TOPIC_ID, -1)
        fixture.metadata.image = ClusterImage(topics={"t": topic("t", GONE_ID, 3)})
        response = await fixture.fetch(10, [0], topic_id=GONE_ID)
        partition = response.groups[0].topics[0].partitions[0]
        assert (partition.error_code, partition.committed_offset) == (0, -1)


def every_offset(response: Any) -> list[int]:
    """The offsets in an OffsetFetch response of any version."""
    topics = response.groups[0].topics if response.groups else response.topics
    return [one.committed_offset for topic in topics for one in topic.partitions]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH)[1:])
async def test_a_topic_created_again_has_no_committed_offsets(version: int) -> None:
    """Also if the coordinator was not notified of the deletion, and still has the offset."""

    async with HandlerFixture() as fixture:
        await fixture.commit(9, {0: 700})
        fixture.metadata.image = ClusterImage(topics={"t": topic("t", GONE_ID, 3)})
        assert every_offset(await fixture.fetch(version, [0], topic_id=GONE_ID)) == [-1]
        if version >= 2:
            assert every_offset(await fixture.fetch(version)) == [-1]
        await fixture.commit(9, {0: 3})
        assert every_offset(await fixture.fetch(version, [0], topic_id=GONE_ID)) == [3]


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FETCH)[1:10])
async def test_finds_an_offset_without_topic_id_by_topic_name(version: int) -> None:
    """A commit with a retention time is written without the topic id, as are those of older brokers."""

    async with HandlerFixture() as fixture:
        await fixture.service.commit(commit(offset=700))
        assert every_offset(await fixture.fetch(version, [0])) == [700]


async def test_version_0_keeps_offsets_in_the_store_at_any_broker(tmp_path: Path) -> None:
    """On any broker, and with or without members. Other offsets of the group are not returned."""

    async with HandlerFixture() as fixture:
        fixture.store = store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        await fixture.commit(8, {0: 3, 1: 3})
        await fixture.stable()
        fixture.service.runtime.resign(fixture.partition())
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await fixture.commit(0, {0: 5, 3: 9, 2: 6, -1: 1}) == [
            (0, 0),
            (3, unknown),  # the first partition that does not exist
            (2, 0),
            (-1, unknown),
        ]
        assert await fixture.commit(0, {0: 5}, name="nope") == [(0, unknown)]
        node = await store.get("/consumers/g/offsets/t/2")
        assert node is not None
        assert node.data == b"6"
        found = (await fixture.fetch(0, [0, 1, 2, 3, -1])).topics[0].partitions
        assert [
            (one.partition_index, one.committed_offset, one.metadata, one.error_code) for one in found
        ] == [
            (0, 5, "", 0),
            (1, -1, "", unknown),
            (2, 6, "", 0),
            (3, -1, "", unknown),
            (-1, -1, "", unknown),
        ]
        await store.close()
        assert await fixture.commit(0, {0: 5}) == [(0, ErrorCode.KAFKA_STORAGE_ERROR)]
        found = (await fixture.fetch(0, [0])).topics[0].partitions
        assert found[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_version_0_rejects_long_metadata_only_for_its_partition(tmp_path: Path) -> None:
    async with HandlerFixture(offset_metadata_size_max=1) as fixture:
        fixture.store = store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
        assert await fixture.commit(0, {0: 5}) == [(0, ErrorCode.OFFSET_METADATA_TOO_LARGE)]
        assert not await store.exists("/consumers/g/offsets/t/0")
        await store.close()


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
async def test_describe_groups_is_handled_in_every_version(version: int) -> None:
    async with HandlerFixture() as fixture:
        member = await fixture.stable()
        request = DescribeGroupsRequest(groups=["g", "none"], include_authorized_operations=version >= 3)
        stable, none = (await fixture.ask(ApiKey.DESCRIBE_GROUPS, version, request)).groups
        assert (stable.error_code, stable.group_state, stable.protocol_type) == (0, "Stable", "consumer")
        assert stable.protocol_data == "range"
        assert [(one.member_id, one.member_metadata, one.member_assignment) for one in stable.members] == [
            (member, b"s", b"x")
        ]
        assert stable.authorized_operations == -(2**31)
        assert (none.group_id, none.group_state, none.members) == ("none", "Dead", [])
        if version >= 6:
            assert none.error_code == ErrorCode.GROUP_ID_NOT_FOUND
            assert "none" in none.error_message
        else:
            assert none.error_code == 0


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
async def test_list_groups_is_handled_in_every_version(version: int) -> None:
    async with HandlerFixture() as fixture:
        await fixture.stable("stable")
        await fixture.commit(8, {0: 5})
        response = await fixture.ask(ApiKey.LIST_GROUPS, version, ListGroupsRequest())
        state = {"stable": "Stable", "g": "Empty"} if version >= 4 else {"stable": "", "g": ""}
        kind = "classic" if version >= 5 else ""
        found = {
            (one.group_id, one.protocol_type, one.group_state, one.group_type) for one in response.groups
        }
        assert found == {("stable", "consumer", state["stable"], kind), ("g", "", state["g"], kind)}


@pytest.mark.parametrize(
    ("states", "types", "names"),
    [
        (["sTable"], [], {"stable"}),
        (["Empty", "Stable"], ["Classic"], {"stable", "g"}),
        (["Dead"], [], set()),
        ([], ["consumer"], set()),
        (["nonsense"], [], set()),
        ([], ["nonsense"], set()),
    ],
)
async def test_list_groups_filters(states: list[str], types: list[str], names: set[str]) -> None:
    async with HandlerFixture() as fixture:
        await fixture.stable("stable")
        await fixture.commit(8, {0: 5})
        request = ListGroupsRequest(states_filter=states, types_filter=types)
        response = await fixture.ask(ApiKey.LIST_GROUPS, 5, request)
        assert {one.group_id for one in response.groups} == names


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
async def test_delete_groups_is_handled_in_every_version(version: int) -> None:
    async with HandlerFixture() as fixture:
        await fixture.commit(8, {0: 5})
        await fixture.stable("busy")
        request = DeleteGroupsRequest(groups_names=["busy", "g", "none", "g"])
        response = await fixture.ask(ApiKey.DELETE_GROUPS, version, request)
        assert [(one.group_id, one.error_code) for one in response.results] == [
            ("busy", ErrorCode.NON_EMPTY_GROUP),
            ("g", 0),
            ("none", ErrorCode.GROUP_ID_NOT_FOUND),
        ]


async def test_offset_delete_is_handled_in_every_version() -> None:
    async with HandlerFixture() as fixture:
        await fixture.commit(8, {0: 5, 1: 6})
        partitions = [OffsetDeleteRequestPartition(partition_index=index) for index in (0, 9)]
        request = OffsetDeleteRequest(
            group_id="g",
            topics=[
                OffsetDeleteRequestTopic(name="t", partitions=partitions),
                OffsetDeleteRequestTopic(name="nope", partitions=partitions[:1]),
            ],
        )
        response = await fixture.ask(ApiKey.OFFSET_DELETE, 0, request)
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        found = [
            [(one.partition_index, one.error_code) for one in each.partitions] for each in response.topics
        ]
        assert (response.error_code, found) == (0, [[(0, 0), (9, unknown)], [(0, unknown)]])
        assert set((await fixture.service.fetch("g"))[1]["t"]) == {1}
        request.group_id = "none"
        response = await fixture.ask(ApiKey.OFFSET_DELETE, 0, request)
        assert response.error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_rejects_and_logs_too_many_protocols_or_assignments(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with HandlerFixture() as fixture:
        protocols = [JoinGroupRequestProtocol(name=f"p{n}", metadata=b"") for n in range(1001)]
        join = JoinGroupRequest(
            group_id="g" * 500,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            protocol_type="consumer",
            protocols=protocols,
        )
        joined = await fixture.ask(ApiKey.JOIN_GROUP, 5, join)
        assert joined.error_code == ErrorCode.INVALID_REQUEST
        given = [SyncGroupRequestAssignment(member_id=f"m{n}", assignment=b"") for n in range(10_001)]
        sync = SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=given)
        synced = await fixture.ask(ApiKey.SYNC_GROUP, 3, sync)
        assert synced.error_code == ErrorCode.INVALID_REQUEST
        join.protocols = protocols[:1000]
        assert (await fixture.ask(ApiKey.JOIN_GROUP, 5, join)).error_code == ErrorCode.MEMBER_ID_REQUIRED
    first, second = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "1001 protocols: at most 1000" in first
    assert len(first) < 300
    assert "10001 assignments: at most 10000" in second


PRODUCER = ProducerIdAndEpoch(1, 0)


async def begin_transaction(fixture: HandlerFixture, *partitions: int) -> None:
    """Commits offset 5 of partitions in a transaction."""
    transaction = TransactionProducer(producer=PRODUCER, check=lambda: None)
    offsets = tuple(OffsetToCommit(topic="t", partition=one, offset=5) for one in partitions)
    request = CommitRequest(group_id="g", offsets=offsets, producer=transaction)
    assert set((await fixture.service.commit(request)).errors) == {ErrorCode.NONE}


@pytest.mark.parametrize("version", range(7, 11))
@pytest.mark.parametrize("of_all_topics", [True, False])
async def test_offsets_in_an_open_transaction_are_unstable(version: int, of_all_topics: bool) -> None:
    async with HandlerFixture() as fixture:
        await fixture.service.commit(commit(offset=3))
        await begin_transaction(fixture, 0, 1)
        for require_stable in (True, False):
            wanted = None if of_all_topics else [0]
            response = await fixture.fetch(version, wanted, require_stable=require_stable)
            found = (response.groups[0] if version >= 8 else response).topics
            [[one]] = [topic.partitions for topic in found]
            expected = (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1) if require_stable else (ErrorCode.NONE, 3)
            assert (one.partition_index, one.error_code, one.committed_offset) == (0, *expected)


async def test_an_offset_that_becomes_stable_while_a_response_is_built_is_not_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The response to a request with many partitions is built in slices."""
    over = RequestSlices.over

    async with HandlerFixture() as fixture:
        await begin_transaction(fixture, 0, 1)

        async def over_and_end(self: RequestSlices, items: Any) -> Any:
            async for item in over(self, items):
                if item == 1:
                    marker = MarkerToWrite(PRODUCER, True, 0, 2)
                    await fixture.service.end_transaction(fixture.partition("g"), marker)
                yield item

        monkeypatch.setattr(RequestSlices, "over", over_and_end)
        wanted = OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])
        request = OffsetFetchRequest(group_id="g", topics=[wanted], require_stable=True)
        response = await fixture.ask(ApiKey.OFFSET_FETCH, 7, request)
        first, second = response.topics[0].partitions
        assert first.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert (second.error_code, second.committed_offset) == (ErrorCode.NONE, 5)
