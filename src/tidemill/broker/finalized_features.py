"""The feature levels of the cluster, from the node ``/feature`` of the coordination store.

=====================  ======  ===========================================================================
feature                levels  with the highest level
=====================  ======  ===========================================================================
group.version          0       (none of its protocol is served)
transaction.version    0 to 2  1: records of transactions have tagged fields; 2: the epoch grows with each
                               transaction, and brokers add partitions to it (KIP-890)
=====================  ======  ===========================================================================

Without the node, a feature has its highest level. A feature that the node does not contain has its lowest
level: Apache Kafka on ZooKeeper creates the node without ``transaction.version``, and has level 0.

Source: KIP-584; Apache Kafka, ``FeatureZNode``, ``FeatureControlManager.java``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from tidemill.coordination.coordination_store import (
    BadVersion,
    Create,
    Event,
    NodeExists,
    Operation,
    SessionState,
    SetData,
    Store,
    StoreError,
    Watch,
)
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import FEATURE, FeatureNode
from tidemill.model.backoff import Backoff, retry
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.task_set import TaskSet
from tidemill.model.transaction_types import TRANSACTION_VERSION

logger = logging.getLogger("tidemill.broker")

SUPPORTED: Final = {"group.version": (0, 0), TRANSACTION_VERSION: (0, 2)}
"""The lowest and the highest level of each feature."""
READ_RETRY_S: Final = 0.5
READ_RETRY_S_MAX: Final = 10.0
"""The pause before a failed read is repeated, at first and at most."""
MISSING: Final = -1
"""The version of a node that does not exist."""


class FeatureUpdate(NamedTuple):
    """A feature and its new level. A lower level must be allowed."""

    name: str
    level: int
    may_downgrade: bool


class FinalizedFeatures:
    """The current levels, which a watch keeps up to date."""

    def __init__(self, store: Store) -> None:
        self.levels: Mapping[str, int] = _highest()
        self.epoch = 0
        """It grows with each change: clients use the levels with the highest epoch."""
        self._store = store
        self._version = MISSING
        self._watch: Watch | None = None
        self._is_due = asyncio.Event()
        """Whether the node may have changed since the last read."""
        self._tasks = TaskSet()

    @property
    def transaction_version(self) -> int:
        """The level of ``transaction.version``."""
        return self.levels[TRANSACTION_VERSION]

    async def start(self) -> None:
        """Reads the levels, and watches them. Raises StoreError."""
        self._store.on_session(self._session_changed)
        self._watch = await self._store.watch(FEATURE, self._changed)
        await self._read()
        self._tasks.start(self._read_changes())

    async def stop(self) -> None:
        """Ends the watch and the reads."""
        if self._watch is not None:
            self._watch.cancel()
        await self._tasks.cancel()

    def _changed(self, event: Event) -> None:
        self._is_due.set()

    def _session_changed(self, state: SessionState) -> None:
        """Reads the levels in a new session: changes between the sessions have no event."""
        if state is SessionState.CONNECTED:
            self._is_due.set()

    async def _read_changes(self) -> None:
        def failed(problem: StoreError, pause_s: float) -> None:
            logger.warning("the feature levels are read again in %g s: %s", pause_s, problem)

        while True:
            await self._is_due.wait()
            self._is_due.clear()
            await retry(self._read, StoreError, Backoff(READ_RETRY_S, READ_RETRY_S_MAX), failed)

    async def _read(self) -> None:
        node = await self._store.get(FEATURE)
        if node is None:
            self._set({}, MISSING)
            return
        try:
            levels = FeatureNode.decode(node.data)
        except NodeFormatError as problem:
            logger.error("the feature levels are those of before: %s", problem)
            return
        self._set(levels, node.version)

    def _set(self, levels: Mapping[str, int], version: int) -> None:
        self.levels = _highest() if version == MISSING else _supported(levels)
        self._version, self.epoch = version, version + 1

    def check(self, update: FeatureUpdate) -> str:
        """Returns the reason why an update is refused; empty if it may be made."""
        if update.name not in SUPPORTED:
            return f"feature {update.name} does not exist here, only {' and '.join(SUPPORTED)}"
        lowest, highest = SUPPORTED[update.name]
        if not lowest <= update.level <= highest:
            return f"{update.name} cannot have the level {update.level}: {lowest} to {highest} are supported"
        current = self.levels[update.name]
        if update.level < current and not update.may_downgrade:
            return f"{update.name} has the level {current}: a downgrade to {update.level} must be allowed"
        return ""

    async def update(self, changes: Mapping[str, int]) -> None:
        """Writes new levels. Raises KafkaError if another update came first, or StoreError."""
        data = FeatureNode.encode({**self.levels, **changes})
        operation: Operation = (
            Create(FEATURE, data) if self._version == MISSING else SetData(FEATURE, data, self._version)
        )
        try:
            await self._store.transact([operation])
        except (BadVersion, NodeExists) as problem:
            raise KafkaError(
                "another update of the features came first: repeat this one", ErrorCode.FEATURE_UPDATE_FAILED
            ) from problem
        await self._read()


def _highest() -> dict[str, int]:
    """Returns the highest level of each feature."""
    return {name: highest for name, (_, highest) in SUPPORTED.items()}


def _supported(levels: Mapping[str, int]) -> dict[str, int]:
    """Returns the level of each supported feature; an unknown level becomes the nearest supported one."""
    found = {}
    for name, (lowest, highest) in SUPPORTED.items():
        found[name] = min(max(levels.get(name, lowest), lowest), highest)
    return found
