"""The admin client's part for groups and their offsets."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidemill.client.admin_base import AdminBase
from tidemill.client.admin_types import GroupDescription, GroupListing, GroupMember, PartitionLag
from tidemill.client.cluster import CONTROL
from tidemill.client.connection import Connection
from tidemill.client.errors import ClientError, check, code_of, error_for
from tidemill.client.group_offsets import Committed, commit_offsets, fetch_offsets, with_coordinator
from tidemill.client.group_protocol import by_topic, decode_assignment
from tidemill.client.group_requests import CONSUMER_PROTOCOL, leave_group
from tidemill.client.offsets import EARLIEST, LATEST, list_offsets
from tidemill.model.errors import ErrorCode, ProtocolError
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from tidemill.wire.messages.delete_groups import DeleteGroupsRequest
from tidemill.wire.messages.describe_groups import DescribeGroupsRequest
from tidemill.wire.messages.list_groups import ListGroupsRequest
from tidemill.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)

DEAD = "Dead"


class GroupAdmin(AdminBase):
    """Groups: list, describe, delete, lag, offsets."""

    def list_groups(
        self,
        *,
        states: Iterable[str] = (),
        types: Iterable[str] = (),
        timeout: float | None = None,
    ) -> list[GroupListing]:
        """The groups of all brokers, filtered by ``states`` (Stable ..) and ``types`` (classic, consumer).

        KafkaError UNSUPPORTED_VERSION where a broker cannot filter: by state from 2.6 on, by type from 3.8.
        """
        deadline = self._deadline(timeout)
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        found: dict[str, GroupListing] = {}
        for node_id in self._living_brokers(deadline):
            connection = self._cluster.connection(node_id, CONTROL, deadline)
            # A broker too old to filter is an error: it would give groups that were not asked for.
            answer = connection.call(ApiKey.LIST_GROUPS, request)
            if answer.error_code not in (0, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                raise error_for(answer.error_code, "list groups", broker=connection.address)
            for group in answer.groups:
                found[group.group_id] = GroupListing(
                    group.group_id, group.protocol_type, group.group_state, group.group_type, node_id
                )
        return [found[name] for name in sorted(found)]

    def describe_group(self, group: str, timeout: float | None = None) -> GroupDescription:
        """State, members and assignment of a group. ClientError GROUP_ID_NOT_FOUND when there is none."""

        def ask(connection: Connection) -> GroupDescription:
            version = connection.version(ApiKey.DESCRIBE_GROUPS)
            request = DescribeGroupsRequest(groups=[group])
            answer = connection.call(ApiKey.DESCRIBE_GROUPS, request, version=version).groups[0]
            gone = answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND or answer.group_state == DEAD
            if gone and connection.supports(ApiKey.CONSUMER_GROUP_DESCRIBE):
                found = _describe_new(connection, group)
                if found is not None:
                    return found
            if gone:
                raise error_for(
                    ErrorCode.GROUP_ID_NOT_FOUND, f"describe group {group!r}", broker=connection.address
                )
            check(answer.error_code, f"describe group {group!r}", broker=connection.address)
            return _described(answer, connection.node_id)

        found: GroupDescription = with_coordinator(self._cluster, group, self._deadline(timeout), ask)
        return found

    def delete_group(self, group: str, timeout: float | None = None) -> None:
        """Deletes a group without members, and its offsets."""

        def ask(connection: Connection) -> None:
            answer = connection.call(ApiKey.DELETE_GROUPS, DeleteGroupsRequest(groups_names=[group]))
            for result in answer.results:
                check(result.error_code, f"delete group {group!r}", broker=connection.address)

        with_coordinator(self._cluster, group, self._deadline(timeout), ask)

    def remove_member(
        self, group: str, *, member_id: str = "", instance_id: str | None = None, timeout: float | None = None
    ) -> None:
        """Has a member, or a static one by its instance id, leave the group."""

        def ask(connection: Connection) -> None:
            answer = leave_group(connection, group, member_id, instance_id, "removed by an administrator")
            what = f"remove {instance_id or member_id!r} from group {group!r}"
            check(answer.error_code, what, broker=connection.address)
            for member in answer.members:
                check(member.error_code, what, broker=connection.address)

        with_coordinator(self._cluster, group, self._deadline(timeout), ask)

    # -- offsets ------------------------------------------------------------------------------------------

    def group_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        timeout: float | None = None,
    ) -> dict[TopicPartition, Committed]:
        """The committed offsets of a group: all, or of ``partitions``; those without one are left out."""
        return fetch_offsets(self._cluster, group, partitions, self._deadline(timeout))

    def alter_group_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int | Committed],
        timeout: float | None = None,
    ) -> None:
        """Sets committed offsets of a group that has no members."""
        wanted = {
            TopicPartition(*item): (
                (at, -1, "") if isinstance(at, int) else (at.offset, at.leader_epoch, at.metadata)
            )
            for item, at in offsets.items()
        }
        try:
            commit_offsets(self._cluster, group, wanted, self._deadline(timeout))
        except ClientError as problem:
            if problem.code == ErrorCode.UNKNOWN_MEMBER_ID:
                raise error_for(
                    ErrorCode.NON_EMPTY_GROUP, f"set offsets of group {group!r}", broker=problem.broker
                ) from problem
            raise

    def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> None:
        """Forgets committed offsets of topics that no member subscribes to."""
        grouped = by_topic(TopicPartition(*item) for item in partitions)
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[OffsetDeleteRequestPartition(partition_index=p) for p in numbers],
                )
                for topic, numbers in grouped.items()
            ],
        )

        def ask(connection: Connection) -> None:
            answer = connection.call(ApiKey.OFFSET_DELETE, request)
            check(answer.error_code, f"delete offsets of group {group!r}", broker=connection.address)
            for topic in answer.topics:
                for entry in topic.partitions:
                    check(
                        entry.error_code,
                        f"delete the offset of group {group!r} in {topic.name}-{entry.partition_index}",
                        broker=connection.address,
                    )

        with_coordinator(self._cluster, group, self._deadline(timeout), ask)

    def reset_group_offsets(
        self,
        group: str,
        topics: Sequence[str] | None = None,
        *,
        to: str | int = "earliest",
        timestamp_ms: int | None = None,
        shift_by: int | None = None,
        partitions: Iterable[TopicPartition] | None = None,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, tuple[int | None, int]]:
        """Moves a group without members; the old (None without) and new offset of each partition.

        Of ``topics`` or ``partitions``, or all that the group has committed. ``to`` is earliest, latest or an
        offset; or ``timestamp_ms`` (the first record at or after it, the end without one), or ``shift_by``
        records. New offsets are kept within what the log has. ``dry_run`` only tells.
        """
        deadline = self._deadline(timeout)
        old = self.group_offsets(group, timeout=timeout)
        items = self._to_reset(old, topics, partitions, deadline)
        starts = list_offsets(self._cluster, dict.fromkeys(items, EARLIEST), deadline)
        ends = list_offsets(self._cluster, dict.fromkeys(items, LATEST), deadline)
        timed = (
            list_offsets(self._cluster, dict.fromkeys(items, timestamp_ms), deadline)
            if timestamp_ms is not None
            else {}
        )
        plan: dict[TopicPartition, tuple[int | None, int]] = {}
        for item in items:
            before = old[item].offset if item in old else None
            start, end = starts[item].offset, ends[item].offset
            if timestamp_ms is not None:
                target = timed[item].offset if timed[item].offset >= 0 else end
            elif shift_by is not None:
                target = (start if before is None else before) + shift_by
            elif isinstance(to, str):
                if to not in ("earliest", "latest"):
                    raise ValueError(f"reset to {to!r}: use earliest, latest or an offset")
                target = start if to == "earliest" else end
            else:
                target = to
            plan[item] = (before, min(max(target, start), end))
        if not dry_run:
            self.alter_group_offsets(group, {item: new for item, (_, new) in plan.items()}, timeout)
        return plan

    def _to_reset(
        self,
        old: Mapping[TopicPartition, Committed],
        topics: Sequence[str] | None,
        partitions: Iterable[TopicPartition] | None,
        deadline: float,
    ) -> list[TopicPartition]:
        items = {TopicPartition(*item) for item in partitions or ()}
        for name in topics or ():
            known = self._cluster.topic(name, deadline)
            items.update(TopicPartition(name, p.partition) for p in known.partitions)
        if topics is None and partitions is None:
            items.update(old)
        return sorted(items)

    def group_lag(self, group: str, timeout: float | None = None) -> list[PartitionLag]:
        """Where a group is in every partition that it has committed or reads, and how much is left.

        Raises ClientError also where one of the leaders does not answer in time.
        """
        deadline = self._deadline(timeout)
        committed = self.group_offsets(group, timeout=timeout)
        readers: dict[TopicPartition, GroupMember] = {}
        try:
            description = self.describe_group(group, timeout)
        except ClientError as problem:
            if problem.code != ErrorCode.GROUP_ID_NOT_FOUND or not committed:
                raise
        else:
            readers = {item: member for member in description.members for item in member.partitions}
        self._cluster.refresh(deadline, {item.topic for item in [*committed, *readers]})
        items = [i for i in sorted({*committed, *readers}) if i.topic in self._cluster.topics]
        led = [item for item in items if self._is_led(item)]
        starts = list_offsets(self._cluster, dict.fromkeys(led, EARLIEST), deadline)
        ends = list_offsets(self._cluster, dict.fromkeys(led, LATEST), deadline)
        rows: list[PartitionLag] = []
        for item in items:
            at = committed[item].offset if item in committed else None
            end = ends[item].offset if item in ends else None
            member = readers.get(item)
            rows.append(
                PartitionLag(
                    item.topic,
                    item.partition,
                    at,
                    starts[item].offset if item in starts else None,
                    end,
                    None if at is None or end is None else max(0, end - at),
                    member.member_id if member else "",
                    member.client_id if member else "",
                    member.host if member else "",
                )
            )
        return rows

    def _is_led(self, item: TopicPartition) -> bool:
        """Whether the metadata names a leader of the partition."""
        partitions = self._cluster.topics[item.topic].partitions
        return item.partition < len(partitions) and partitions[item.partition].leader >= 0

    def await_empty(self, group: str, timeout: float | None = None) -> None:
        """Returns once the group has no members; ClientError NON_EMPTY_GROUP when it still has some then."""
        deadline = self._deadline(timeout)
        while True:
            description = self.describe_group(group, max(0.0, deadline - time.monotonic()))
            if not description.members:
                return
            if time.monotonic() >= deadline:
                raise error_for(
                    ErrorCode.NON_EMPTY_GROUP, f"wait for the members of group {group!r} to leave"
                )
            time.sleep(0.1)


def _described(answer: Any, coordinator: int) -> GroupDescription:
    members: list[GroupMember] = []
    for member in answer.members:
        partitions: list[TopicPartition] = []
        if answer.protocol_type == CONSUMER_PROTOCOL:
            try:
                partitions = decode_assignment(member.member_assignment)
            except ProtocolError:
                partitions = []  # a plugin's own format: nothing to show
        members.append(
            GroupMember(
                member.member_id, member.group_instance_id, member.client_id, member.client_host, partitions
            )
        )
    return GroupDescription(
        answer.group_id,
        answer.group_state,
        answer.protocol_type,
        answer.protocol_data,
        coordinator,
        members,
    )


def _describe_new(connection: Connection, group: str) -> GroupDescription | None:
    """A group of the newer protocol (KIP-848); None when there is none such."""
    answer = connection.call(
        ApiKey.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest(group_ids=[group])
    ).groups[0]
    if code_of(answer.error_code) in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    check(answer.error_code, f"describe group {group!r}", broker=connection.address)
    members = [
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            [
                TopicPartition(topic.topic_name, p)
                for topic in member.assignment.topic_partitions
                for p in topic.partitions
            ],
        )
        for member in answer.members
    ]
    return GroupDescription(
        answer.group_id, answer.group_state, "consumer", answer.assignor_name, connection.node_id, members
    )
