"""The offsets of OffsetCommit and OffsetFetch version 0: nodes in the coordination store.

Kafka 0.8.1 had no other offsets, and every later Kafka on ZooKeeper keeps those of version 0 there. Consumers
and tools of that time read and write the same nodes without a broker. These offsets have no coordinator: any
broker stores and returns them, without checks of members and without expiry.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidemill.coordination.coordination_store import (
    Create,
    NodeExists,
    NoNode,
    Operation,
    OperationError,
    SetData,
    Store,
    StoreError,
    StoreUnavailable,
    ensure_paths,
    parent_of,
)
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import ConsumerOffsetNode, is_group_name
from tidemill.coordination.write_batches import in_pieces
from tidemill.coordinator_runtime.value_classes import Value
from tidemill.model.errors import ErrorCode
from tidemill.model.types import NO_OFFSET, TopicPartition

logger = logging.getLogger("tidemill.groups")


class StoredOffset(Value):
    """The offset stored for one partition, or the error that explains its absence."""

    offset: int
    error: ErrorCode = ErrorCode.NONE


class PartitionOffset(Value):
    """An offset to store."""

    partition: TopicPartition
    offset: int


class ZooKeeperOffsets:
    """Offsets of groups in a coordination store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def commit(self, group: str, offsets: Sequence[PartitionOffset]) -> list[ErrorCode]:
        """Stores offsets of a group; returns errors in the same order. A partition's last offset wins."""
        if not is_group_name(group):
            return [ErrorCode.INVALID_GROUP_ID] * len(offsets)
        changes: list[Operation] = [
            SetData(
                ConsumerOffsetNode.path(group, offset.partition), ConsumerOffsetNode.encode(offset.offset)
            )
            for offset in offsets
        ]
        errors: list[ErrorCode] = []
        for piece in in_pieces(changes):
            errors += await self._write([change for change in piece if isinstance(change, SetData)])
        return errors

    async def _write(self, changes: list[SetData]) -> list[ErrorCode]:
        """Sets nodes in one transaction when all exist, as after a group's first commit."""
        try:
            try:
                await self._store.transact(changes)
            except NoNode:
                await self._create(changes)
        except OperationError:
            return [await self._write_one(change) for change in changes]
        except StoreError as problem:
            return [_code(problem)] * len(changes)
        return [ErrorCode.NONE] * len(changes)

    async def _create(self, changes: list[SetData]) -> None:
        """Sets or creates nodes in one transaction. Raises OperationError when another client created one."""
        await ensure_paths(self._store, {parent_of(change.path) for change in changes})
        found = await self._store.get_many([change.path for change in changes])
        await self._store.transact(
            [
                Create(change.path, change.data) if node is None else change
                for change, node in zip(changes, found, strict=True)
            ]
        )

    async def _write_one(self, change: SetData) -> ErrorCode:
        """Writes one node, and retries while other clients create or delete it at the same time."""
        problem: StoreError | None = None
        for _ in range(3):
            try:
                await self._create([change])
            except (NodeExists, NoNode) as race:
                problem = race
            except StoreError as refused:
                problem = refused
                break
            else:
                return ErrorCode.NONE
        logger.warning("the offset of %s could not be stored: %s", change.path, problem)
        return _code(problem)

    async def fetch(self, group: str, partitions: Sequence[TopicPartition]) -> list[StoredOffset]:
        """Returns the offsets of a group, in order; UNKNOWN_TOPIC_OR_PARTITION where none is stored."""
        if not is_group_name(group):
            return [StoredOffset(offset=NO_OFFSET, error=ErrorCode.INVALID_GROUP_ID)] * len(partitions)
        paths = [ConsumerOffsetNode.path(group, partition) for partition in partitions]
        try:
            nodes = await self._store.get_many(paths)
        except StoreError as problem:
            return [StoredOffset(offset=NO_OFFSET, error=_code(problem))] * len(partitions)
        return [
            StoredOffset(offset=NO_OFFSET, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if node is None
            else _stored(path, node.data)
            for path, node in zip(paths, nodes, strict=True)
        ]


def _stored(path: str, data: bytes) -> StoredOffset:
    try:
        return StoredOffset(offset=ConsumerOffsetNode.decode(path, data))
    except NodeFormatError as problem:
        logger.error("%s", problem)
        return StoredOffset(offset=NO_OFFSET, error=ErrorCode.UNKNOWN_SERVER_ERROR)


def _code(problem: StoreError | None) -> ErrorCode:
    return problem.code if isinstance(problem, StoreUnavailable) else ErrorCode.UNKNOWN_SERVER_ERROR
