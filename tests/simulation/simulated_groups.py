"""Consumer groups of a simulated cluster: a group without members, and members of the classic protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

from change_phases import ChangePhases
from promises import PartitionKey
from simulated_clients import Client, Refused, node_of

from tidemill.model.errors import ErrorCode
from tidemill.net.link import LinkError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.heartbeat import HeartbeatRequest
from tidemill.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidemill.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from tidemill.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

OFFSETS = "__consumer_offsets"
FIND_VERSION, COMMIT_VERSION, FETCH_VERSION = 3, 7, 6
JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION, LEAVE_VERSION = 5, 3, 3, 4
PAUSE_S_MEAN, READ_PAUSE_S_MEAN = 0.1, 0.15
PASSING_PAUSE_S_MEAN = 0.05
SESSION_MS, REBALANCE_MS = 800, 600
FENCED = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS)
"""What a member of an old generation is answered. Nothing was committed then."""
SENT_AGAIN = 0.4
"""The share of new generations in which a member sends its last commit of a former one again."""
STALL_S = 2.0
"""A member that is paused for this time is removed from its group without its knowledge."""
REST_S = 2 * SESSION_MS / 1000
"""A group is at rest when it has had one assignment for so long: sessions of former members are over."""


class GroupClient(Client):
    """The common part of group clients: the coordinator."""

    def __init__(self, *client: Any, group: str) -> None:
        super().__init__(*client)
        self.group = group
        self._coordinator = ""

    async def _find(self) -> None:
        request = FindCoordinatorRequest(key=self.group, key_type=0)
        answer = await self.ask_any(ApiKey.FIND_COORDINATOR, FIND_VERSION, request)
        if answer.error_code:
            raise Refused(answer.error_code)
        self._coordinator = answer.host

    async def _commit(
        self, tp: PartitionKey, offset: int, generation: int = -1, member_id: str = "", order: int = -1
    ) -> None:
        topic, partition = tp
        one = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=None
        )
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[OffsetCommitRequestTopic(name=topic, partitions=[one])],
        )
        self.promises.commit_tried(self.group, tp, offset)
        self.events.add(f"commits {offset} for {tp} at {self._coordinator}")
        sent_s = self.now
        answer = await self.ask(self._coordinator, ApiKey.OFFSET_COMMIT, COMMIT_VERSION, request)
        code = answer.topics[0].partitions[0].error_code
        if code in FENCED:
            self.events.count("commits of old generations refused")
            self.promises.commit_refused(self.group, tp, offset)
        if code:
            raise Refused(code)
        self.events.add(f"{offset} for {tp} is committed")
        self.promises.commit_acknowledged(self.group, tp, offset, sent_s=sent_s, generation=order)

    async def _position(self, tp: PartitionKey) -> tuple[int, bool]:
        """Returns the group's offset; False if the coordinator may not know the last one."""
        topic, partition = tp
        request = OffsetFetchRequest(
            group_id=self.group,
            topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])],
        )
        least = self.promises.commits_of(self.group, tp).settled
        answer = await self.ask(self._coordinator, ApiKey.OFFSET_FETCH, FETCH_VERSION, request)
        if answer.error_code:
            raise Refused(answer.error_code)
        one = answer.topics[0].partitions[0]
        if one.error_code:
            raise Refused(one.error_code)
        self.events.add(f"finds {one.committed_offset} for {tp} at {self._coordinator}")
        offset, broker = one.committed_offset, node_of(self._coordinator)
        is_sure = self.promises.committed_found(self.group, tp, offset, (OFFSETS, 0), broker, least)
        return offset, is_sure


class Committer(GroupClient):
    """A group without members, whose client commits one offset after the other, and requests them."""

    def __init__(self, *client: Any, group: str, partition: int) -> None:
        super().__init__(*client, group=group)
        self.tp: PartitionKey = (self.topic, partition)
        self.promises.commits_of(group, self.tp).has_no_members = True
        self._offset = 0
        self._commits = False
        self._found_in_the_end = False

    @property
    def is_settled(self) -> bool:
        return not self._commits and (self._found_in_the_end or not self.ended)

    async def work(self) -> None:
        if not self._commits and not self.ended:
            self._offset += 1
            self._commits = True
            await asyncio.sleep(self.random.expovariate(1 / PAUSE_S_MEAN))
        try:
            if not self._coordinator:
                await self._find()
            if not self._commits:
                _, self._found_in_the_end = await self._position(self.tp)
                self._coordinator = ""
                return
            if self.random.random() < 0.3:
                await self._position(self.tp)
            await self._commit(self.tp, self._offset)
            self._commits = False
        except BaseException:
            self._coordinator = ""
            raise


class PassingCommitter(GroupClient):
    """Commits offsets in a topic that is deleted and recreated: they are removed or refused."""

    def __init__(self, *client: Any, group: str) -> None:
        super().__init__(*client, group=group)
        self._offset = 0

    async def work(self) -> None:
        await asyncio.sleep(self.random.expovariate(1 / PASSING_PAUSE_S_MEAN))
        if self.ended:
            return
        try:
            if not self._coordinator:
                await self._find()
            self._offset += 1
            await self._commit((self.topic, 0), self._offset)
            self.events.count("positions committed in a topic that passes")
        except Refused as refused:
            if refused.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._coordinator = ""
            raise
        except BaseException:
            self._coordinator = ""
            raise


class PositionReader(GroupClient):
    """Requests the offset of a group repeatedly, also while the group commits the next one."""

    def __init__(self, *client: Any, group: str, partition: int) -> None:
        super().__init__(*client, group=group)
        self.tp: PartitionKey = (self.topic, partition)

    async def work(self) -> None:
        await asyncio.sleep(self.random.expovariate(1 / READ_PAUSE_S_MEAN))
        try:
            if not self._coordinator:
                await self._find()
            _, is_sure = await self._position(self.tp)
            if not is_sure:
                self._coordinator = ""
        except BaseException:
            self._coordinator = ""
            raise


class GroupMembers:
    """The live members of a group, which come to rest together: until then they send heartbeats."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.members: list[GroupMember] = []
        self.are_at_rest = False
        self._calm: tuple[int, float] | None = None
        """The generation in which all partitions have an owner, and since when."""

    def look(self, now: float) -> None:
        """Checks whether all members have been in one generation for a while, and own all partitions."""
        orders = {one.order for one in self.members}
        owned = sorted(partition for one in self.members for partition in one.owned)
        if len(orders) != 1 or -1 in orders or owned != list(range(self.partitions)):
            self._calm = None
        elif self._calm is None or self._calm[0] not in orders:
            self._calm = (*orders, now)
        else:
            self.are_at_rest = now - self._calm[1] >= REST_S


class GroupMember(GroupClient):
    """A member of a group: joins, gets partitions, and commits offsets in them."""

    def __init__(self, *client: Any, group: str, members: GroupMembers, phases: ChangePhases) -> None:
        super().__init__(*client, group=group)
        self.members = members
        members.members.append(self)
        self.partitions = members.partitions
        self.phases = phases
        self._member_id = ""
        self._generation = -1
        self._order = -1
        """The place of the generation among all of the group."""
        self._positions: dict[int, int] | None = None
        """Of the partitions that it is assigned; None while it has no assignment."""
        self._last_commit: tuple[PartitionKey, int, int, str, int] | None = None

    @property
    def order(self) -> int:
        """Returns the number of the generation of its assignment; -1 without one."""
        return -1 if self._positions is None else self._order

    @property
    def owned(self) -> list[int]:
        """Returns the assigned partitions."""
        return list(self._positions or ())

    @property
    def is_settled(self) -> bool:
        return self.members.are_at_rest

    async def work(self) -> None:
        try:
            if not self._coordinator:
                await self._find()
            if self._positions is None:
                await self._join()
            if self.ended:
                await asyncio.sleep(self.random.expovariate(1 / PAUSE_S_MEAN))
                await self._beat()
                self.members.look(self.now)
            else:
                await self._consume()
        except Refused as refused:
            self._refused(refused.code)
            raise
        except LinkError:
            self._coordinator = ""
            raise

    def _refused(self, code: int) -> None:
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        if code in (*FENCED, ErrorCode.MEMBER_ID_REQUIRED):
            self._positions = None
        else:
            self._coordinator = ""

    async def _join(self) -> None:
        """Joins the next generation, and requests the committed offsets of its partitions."""
        self.phases.begin("group rebalance")
        try:
            members = await self._ask_to_join()
            shares = self._shares(members)
            partitions = await self._sync(shares)
        finally:
            self.phases.end("group rebalance")
        self.promises.assigned(self.group, self._order, self._member_id, partitions)
        self.phases.moment("group assigned")
        positions = {}
        for partition in partitions:
            positions[partition], _ = await self._position((self.topic, partition))
        self._positions = positions
        if self.random.random() < SENT_AGAIN:
            await self._commit_again()

    async def _commit_again(self) -> None:
        """Repeats the last commit and the other requests of a former generation: all are refused."""
        again, self._last_commit = self._last_commit, None
        if again is None or again[-1] == self._order:
            return
        self.events.count("commits sent again in a later generation")
        if not await self._is_fenced(self._commit(*again)):
            return
        sent_s = self.now
        is_beat_fenced = await self._is_fenced(self._heartbeat(*again[2:4]))
        if await self._is_fenced(self._sync_again(*again[2:])) and not is_beat_fenced:
            # A coordinator that has not loaded the group accepts every heartbeat. This one had loaded it.
            self.promises.accepted_in_generation(
                self.group, "sent a heartbeat", sent_s=sent_s, generation=again[-1]
            )

    @staticmethod
    async def _is_fenced(request: Awaitable[None]) -> bool:
        try:
            await request
        except Refused as refused:
            if refused.code not in FENCED:
                raise
            return True
        return False

    async def _ask_to_join(self) -> list[str]:
        """Returns the members, for the leader of the group; none for other members."""
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        answer = await self.ask(self._coordinator, ApiKey.JOIN_GROUP, JOIN_VERSION, request)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
        if answer.error_code:
            raise Refused(answer.error_code)
        self._member_id, self._generation = answer.member_id, answer.generation_id
        self._order = self.promises.joined(self.group, self._generation, answer.leader)
        self.events.add(f"joins generation {self._generation} as {self._member_id}")
        return [one.member_id for one in answer.members] if answer.leader == self._member_id else []

    def _shares(self, members: list[str]) -> list[SyncGroupRequestAssignment]:
        return [
            SyncGroupRequestAssignment(
                member_id=member,
                assignment=json.dumps(list(range(tp, self.partitions, len(members)))).encode(),
            )
            for tp, member in enumerate(members)
        ]

    async def _sync(self, shares: list[SyncGroupRequestAssignment]) -> list[int]:
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self._generation,
            member_id=self._member_id,
            assignments=shares,
        )
        answer = await self.ask(self._coordinator, ApiKey.SYNC_GROUP, SYNC_VERSION, request)
        if answer.error_code:
            raise Refused(answer.error_code)
        assigned: list[int] = json.loads(answer.assignment or b"[]")
        self.events.add(f"is assigned {assigned}")
        return assigned

    async def _sync_again(self, generation: int, member_id: str, order: int) -> None:
        request = SyncGroupRequest(group_id=self.group, generation_id=generation, member_id=member_id)
        sent_s = self.now
        answer = await self.ask(self._coordinator, ApiKey.SYNC_GROUP, SYNC_VERSION, request)
        if answer.error_code:
            raise Refused(answer.error_code)
        what = "was given its assignment again"
        self.promises.accepted_in_generation(self.group, what, sent_s=sent_s, generation=order)

    async def _consume(self) -> None:
        """Commits its positions; sometimes it is suspended, or leaves."""
        await asyncio.sleep(self.random.expovariate(1 / PAUSE_S_MEAN))
        luck = self.random.random()
        if luck < 0.03:
            self.events.add("stands still")
            self.events.count("members that stand still")
            await asyncio.sleep(STALL_S)
        elif luck < 0.06:
            await self._leave()
            return
        elif luck < 0.08:
            self.events.add("is restarted")
            self.events.count("members that end without leaving")
            self._member_id, self._positions = "", None
            return
        positions = self._positions or {}
        if not positions or self.random.random() < 0.3:
            await self._beat()
        for partition in positions:
            positions[partition] += self.random.choice((1, 1, 5))
            tp = (self.topic, partition)
            commit = (tp, positions[partition], self._generation, self._member_id, self._order)
            self._last_commit = commit
            await self._commit(*commit)

    async def _beat(self) -> None:
        await self._heartbeat(self._generation, self._member_id)

    async def _heartbeat(self, generation: int, member_id: str) -> None:
        request = HeartbeatRequest(group_id=self.group, generation_id=generation, member_id=member_id)
        answer = await self.ask(self._coordinator, ApiKey.HEARTBEAT, HEARTBEAT_VERSION, request)
        if answer.error_code:
            raise Refused(answer.error_code)

    async def _leave(self) -> None:
        self.events.add("leaves")
        self._positions = None
        member_id, self._member_id = self._member_id, ""
        request = LeaveGroupRequest(group_id=self.group, members=[MemberIdentity(member_id=member_id)])
        answer = await self.ask(self._coordinator, ApiKey.LEAVE_GROUP, LEAVE_VERSION, request)
        if answer.error_code:
            raise Refused(answer.error_code)
