"""The offsets of consumer groups below ``/consumers``, as Kafka 0.8 to 3.9 stores them.

=========================== ===== ================
path                        life  data
=========================== ===== ================
/consumers/G/offsets/T/P    stays a decimal number
=========================== ===== ================

OffsetCommit and OffsetFetch version 0 use these nodes, and consumers of that time write and read them
directly. The metadata of a commit is not stored. Source: ``ConsumerOffset`` in ``kafka.zk.ZkData``,
``ZKGroupTopicDirs`` of Kafka 0.8.2.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidemill.coordination.coordination_store import check_path
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import CONSUMERS
from tidemill.model.types import TopicPartition

OFFSETS = "offsets"
_DECIMAL = re.compile(rb"[+-]?[0-9]{1,19}")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
_NO_NAME = re.compile("[/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
"""The path separator, and the characters that ZooKeeper allows in no path."""
_OFFSET_MAX = 2**63 - 1


class GroupPartition(NamedTuple):
    """A consumer group and a partition with a committed offset."""

    group: str
    partition: TopicPartition


class ConsumerOffsetNode:
    """/consumers/G/offsets/T/P: the offset of the next record that the group reads."""

    @staticmethod
    def parent(group: str, topic: str) -> str:
        """Returns the parent path of the offsets of one topic."""
        return f"{CONSUMERS}/{group}/{OFFSETS}/{topic}"

    @classmethod
    def path(cls, group: str, partition: TopicPartition) -> str:
        """Returns the path of the offset of one partition."""
        return f"{cls.parent(group, partition.topic)}/{partition.partition}"

    @staticmethod
    def named(path: str) -> GroupPartition | None:
        """Returns the group and partition of an offset's path; None for a path of another kind."""
        parts = path.split("/")
        if len(parts) != 6 or f"/{parts[1]}" != CONSUMERS or parts[3] != OFFSETS:
            return None
        if _PARTITION.fullmatch(parts[5]) is None:
            return None
        return GroupPartition(parts[2], TopicPartition(parts[4], int(parts[5])))

    @staticmethod
    def encode(offset: int) -> bytes:
        """Encodes the offset."""
        return b"%d" % offset

    @staticmethod
    def decode(path: str, data: bytes) -> int:
        """Returns the offset. Raises NodeFormatError for data that Java's ``Long.parseLong`` refuses."""
        if _DECIMAL.fullmatch(data) is None or not -_OFFSET_MAX - 1 <= int(data) <= _OFFSET_MAX:
            raise NodeFormatError(path, data, "it is not an offset")
        return int(data)


def is_group_name(name: str) -> bool:
    """Whether the group's nodes below /consumers can exist, and are those of no other group."""
    try:
        check_path(f"{CONSUMERS}/{name}")
    except ValueError:
        return False
    return _NO_NAME.search(name) is None
