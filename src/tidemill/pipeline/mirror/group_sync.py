"""Copies the committed offsets of groups, so that a group can continue in the target where it was.

:func:`plan_positions` decides, without I/O. A position is copied once the mirror has the records before it. A
position in the target that the mirror has not written is left if it is ahead: the group has read there.
Groups with members in the target are left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tidemill.client.admin import Admin
from tidemill.client.errors import ClientError
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.client.group_requests import CONSUMER_PROTOCOL
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.pipeline.batch_planning import Offsets
from tidemill.pipeline.mirror.loops import GROUP_PREFIX
from tidemill.pipeline.mirror.topic_filter import TopicFilter

logger = logging.getLogger("tidemill.pipeline")

Positions = Mapping[TopicPartition, OffsetAndMetadata]


class PositionChanges(NamedTuple):
    """``commits`` has the positions to write; ``waiting`` those whose records are not copied yet; ``ahead``
    those that the group has moved in the target.
    """

    commits: dict[TopicPartition, OffsetAndMetadata]
    waiting: dict[TopicPartition, int]
    ahead: dict[TopicPartition, int]


def plan_positions(source: Positions, target: Positions, written: Offsets, ends: Offsets) -> PositionChanges:
    """Compares the positions of one group, all by partitions of the target.

    ``written`` has the offsets that the mirror has written for it, ``ends`` the log ends of the mirrors.
    """
    changes = PositionChanges({}, {}, {})
    for item, wanted in source.items():
        if item not in ends:
            continue
        existing = target.get(item)
        if existing is not None and existing.offset == wanted.offset:
            continue
        if wanted.offset > ends[item]:
            changes.waiting[item] = wanted.offset
        elif existing is None or existing.offset < wanted.offset or written.get(item) == existing.offset:
            # Leader epochs are those of the source's leaders.
            changes.commits[item] = wanted._replace(leader_epoch=-1)
        else:
            changes.ahead[item] = existing.offset
    return changes


class GroupSync:
    """Copies the positions of all groups that a filter selects. The admin clients are the caller's.

    ``translate`` converts positions of a group at the source to those of the target. It omits partitions that
    are not mirrored, and positions that it does not know yet.
    """

    def __init__(
        self,
        source: Admin,
        target: Admin,
        wanted: TopicFilter,
        translate: Callable[[str, Positions], Positions],
    ) -> None:
        self._source = source
        self._target = target
        self._wanted = wanted
        self._translate = translate
        self._written: dict[str, dict[TopicPartition, int]] = {}
        self._reported: set[tuple[str, str]] = set()
        self.copied = 0
        """Positions that were written so far."""

    def run(self, ends: Offsets) -> list[str]:
        """Copies what has changed; ``ends`` are the log ends of the target.

        Returns the groups whose positions in the source are not all in the target. Raises ClientError.
        """
        left: list[str] = []
        for listing in self._source.list_groups():
            if (
                listing.protocol_type not in ("", CONSUMER_PROTOCOL)
                or not self._wanted.matches(listing.group_id)
                or listing.group_id.startswith(GROUP_PREFIX)
            ):
                continue
            try:
                if not self._copy(listing.group_id, ends):
                    left.append(listing.group_id)
            except ClientError as problem:
                if problem.retriable:
                    raise
                self._report(listing.group_id, str(problem))
                left.append(listing.group_id)
        return left

    def _copy(self, group: str, ends: Offsets) -> bool:
        committed = self._source.group_offsets(group)
        source = self._translate(group, committed)
        if not source:
            return True
        existing = self._target.group_offsets(group, list(source))
        written = self._written.setdefault(group, {})
        changes = plan_positions(source, existing, written, ends)
        for item in changes.ahead:
            self._report(group, f"its position in {item} of the target is ahead, and stays")
        if changes.commits:
            try:
                self._target.alter_group_offsets(group, changes.commits)
            except ClientError as problem:
                if problem.code != ErrorCode.NON_EMPTY_GROUP:
                    raise
                self._report(group, "it has members in the target, and its positions there stay")
                return False
            written.update({item: wanted.offset for item, wanted in changes.commits.items()})
            self.copied += len(changes.commits)
        return not changes.waiting and not changes.ahead

    def _report(self, group: str, reason: str) -> None:
        if (group, reason) not in self._reported:
            self._reported.add((group, reason))
            logger.warning("the positions of group %s are not all copied: %s", group, reason)


def same_positions(names: Mapping[str, str]) -> Callable[[Positions], Positions]:
    """Returns the conversion for mirrors with the same offsets; ``names`` has the target's topic names."""

    def translate(positions: Positions) -> Positions:
        return {
            TopicPartition(names[item.topic], item.partition): position
            for item, position in positions.items()
            if item.topic in names
        }

    return translate
