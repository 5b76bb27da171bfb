"""Copies the committed offsets of groups, so that a group can continue in the target where it was.

:func:`plan_positions` decides, without I/O. A position is copied once the mirror has the records before it. A
position in the target that the mirror has not written is left if it is ahead: the group has read there. One
that it has written follows the source back, also after a restart of the job
(:mod:`.written_group_offsets`). Groups with members in the target are left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from tidemill.client.admin import Admin
from tidemill.client.errors import ClientError
from tidemill.client.group_offsets import OffsetAndMetadata
from tidemill.client.group_requests import CONSUMER_PROTOCOL
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.pipeline.batch_planning import Offsets
from tidemill.pipeline.mirror.mirror_loop_detection import GROUP_PREFIX
from tidemill.pipeline.mirror.topic_filter import TopicFilter
from tidemill.pipeline.mirror.written_group_offsets import WrittenPositions

logger = logging.getLogger("tidemill.pipeline")

GROUPS_MAX: Final = 500
"""Groups whose positions are read, noted and committed together."""
COORDINATORS_S: Final = 10.0
"""How long coordinators are waited for. Groups whose coordinator does not answer are copied next time."""
HAS_MEMBERS: Final = "it has members in the target, and its positions there stay"

Positions = Mapping[TopicPartition, OffsetAndMetadata]


class PositionChanges(NamedTuple):
    """``commits`` has the positions to write; ``waiting`` those whose records are not copied yet; ``ahead``
    those that the group has moved in the target.
    """

    commits: dict[TopicPartition, OffsetAndMetadata]
    waiting: dict[TopicPartition, int]
    ahead: dict[TopicPartition, int]


def plan_positions(
    source: Positions,
    target: Positions,
    written: Mapping[TopicPartition, Collection[int]],
    ends: Offsets,
) -> PositionChanges:
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
        elif existing is None or existing.offset < wanted.offset or existing.offset in written.get(item, ()):
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
        written: WrittenPositions,
    ) -> None:
        self._source = source
        self._target = target
        self._wanted = wanted
        self._translate = translate
        self._written = written
        self._reported: set[tuple[str, str]] = set()
        self.failures: dict[str, ClientError] = {}
        """The groups whose coordinators did not answer in the last run."""
        self.copied = 0
        """Positions that were written so far."""

    def run(self, ends: Offsets) -> list[str]:
        """Copies what has changed; ``ends`` are the log ends of the target.

        Returns the groups whose positions in the source are not all in the target. Raises ClientError, and
        OSError if what is written cannot be noted.
        """
        groups = [
            listing.group_id
            for listing in self._source.list_groups()
            if listing.protocol_type in ("", CONSUMER_PROTOCOL)
            and self._wanted.matches(listing.group_id)
            and not listing.group_id.startswith(GROUP_PREFIX)
        ]
        self._written.forget_absent(set(groups))
        left: list[str] = []
        failures: dict[str, ClientError] = {}
        for first in range(0, len(groups), GROUPS_MAX):
            self._copy(groups[first : first + GROUPS_MAX], ends, left, failures)
        left = sorted({*left, *failures})
        self._note_failures(failures)
        return left

    def _copy(
        self, groups: Sequence[str], ends: Offsets, left: list[str], failures: dict[str, ClientError]
    ) -> None:
        """Copies the positions of some groups, with one request to each coordinator and one for each group
        that has moved.
        """
        committed = self._source.offsets_of_groups(dict.fromkeys(groups), timeout=COORDINATORS_S)
        failures |= committed.failures
        source: dict[str, Positions] = {}
        for group, positions in committed.offsets.items():
            translated = self._translated(group, positions, left)
            if translated:
                source[group] = translated
        existing = self._target.offsets_of_groups(source, timeout=COORDINATORS_S)
        failures |= existing.failures
        commits: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        for group, target in existing.offsets.items():
            changes = plan_positions(source[group], target, self._written.of(group), ends)
            for item in changes.ahead:
                self._report(group, f"its position in {item} of the target is ahead, and stays")
            if changes.waiting or changes.ahead:
                left.append(group)
            if changes.commits:
                commits[group] = changes.commits
        self._written.store_intended(
            {group: _offsets(some) for group, some in commits.items()},
            {group: _offsets(existing.offsets[group]) for group in commits},
        )
        self._commit(commits, left, failures)

    def _translated(self, group: str, positions: Positions, left: list[str]) -> Positions:
        try:
            return self._translate(group, positions)
        except ClientError as problem:
            if problem.retriable:
                raise
            self._report(group, str(problem))
            left.append(group)
            return {}

    def _commit(
        self,
        commits: Mapping[str, Mapping[TopicPartition, OffsetAndMetadata]],
        left: list[str],
        failures: dict[str, ClientError],
    ) -> None:
        refused = self._target.alter_offsets_of_groups(commits, timeout=COORDINATORS_S)
        for group, some in commits.items():
            problem = refused.get(group)
            if problem is None:
                self._written.note(group, some, is_written=True)
                self.copied += len(some)
            elif problem.retriable:
                failures[group] = problem
            else:
                self._written.note(group, some, is_written=False)
                left.append(group)
                has_members = problem.code == ErrorCode.NON_EMPTY_GROUP
                self._report(group, HAS_MEMBERS if has_members else str(problem))

    def _note_failures(self, failures: dict[str, ClientError]) -> None:
        """Logs that groups cannot be copied now, once, and an error that no wait would end."""
        for group, problem in list(failures.items()):
            if not problem.retriable:
                self._report(group, str(problem))
                del failures[group]
        if failures and not self.failures:
            logger.warning(
                "the positions of %d groups are not copied now: %s",
                len(failures),
                next(iter(failures.values())),
            )
        self.failures = failures

    def _report(self, group: str, reason: str) -> None:
        if (group, reason) not in self._reported:
            self._reported.add((group, reason))
            logger.warning("the positions of group %s are not all copied: %s", group, reason)


def _offsets(positions: Positions) -> dict[TopicPartition, int]:
    return {item: one.offset for item, one in positions.items()}


def same_positions(names: Mapping[str, str]) -> Callable[[Positions], Positions]:
    """Returns the conversion for mirrors with the same offsets; ``names`` has the target's topic names."""

    def translate(positions: Positions) -> Positions:
        return {
            TopicPartition(names[item.topic], item.partition): position
            for item, position in positions.items()
            if item.topic in names
        }

    return translate
