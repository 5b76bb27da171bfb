"""The feature levels of the cluster: read, changed and watched in the coordination store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tidemill.broker import finalized_features
from tidemill.broker.finalized_features import FeatureUpdate, FinalizedFeatures
from tidemill.coordination.coordination_store import (
    Create,
    Event,
    EventKind,
    Node,
    SessionListener,
    SessionState,
    SetData,
    Store,
    StoreUnavailable,
    Watch,
    Watcher,
)
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.nodes import FEATURE, FeatureNode
from tidemill.model.errors import ErrorCode, KafkaError

NAME = "transaction.version"


class Opened(NamedTuple):
    store: EmbeddedStore
    features: FinalizedFeatures


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[Opened]:
    store = EmbeddedStore.open(str(directory / "coordination.db"))
    features = FinalizedFeatures(store)
    await features.start()
    try:
        yield Opened(store, features)
    finally:
        await features.stop()
        await store.close()


async def until_level(features: FinalizedFeatures, level: int) -> None:
    async with asyncio.timeout(10):
        while features.transaction_version != level:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)


async def test_a_new_cluster_has_the_highest_levels(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, features):
        assert (dict(features.levels), features.epoch) == ({"group.version": 0, NAME: 2}, 0)


@pytest.mark.parametrize(
    ("update", "refusal"),
    [
        (FeatureUpdate("metadata.version", 1, may_downgrade=True), "feature metadata.version does not exist"),
        (FeatureUpdate(NAME, 3, may_downgrade=True), "cannot have the level 3: 0 to 2 are supported"),
        (FeatureUpdate(NAME, -1, may_downgrade=True), "cannot have the level -1"),
        (FeatureUpdate("group.version", 1, may_downgrade=True), "0 to 0 are supported"),
        (FeatureUpdate(NAME, 1, may_downgrade=False), "a downgrade to 1 must be allowed"),
        (FeatureUpdate(NAME, 1, may_downgrade=True), ""),
        (FeatureUpdate(NAME, 2, may_downgrade=False), ""),
    ],
)
async def test_updates_that_cannot_be_made_are_refused_with_the_reason(
    tmp_path: Path, update: FeatureUpdate, refusal: str
) -> None:
    async with opened(tmp_path) as (_, features):
        found = features.check(update)
        assert refusal in found
        assert bool(refusal) == bool(found)


async def test_each_broker_follows_an_update(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, features):
        other = FinalizedFeatures(store)
        await other.start()
        epochs = [features.epoch]
        for level in (0, 1, 2):
            await features.update({NAME: level})
            assert features.transaction_version == level
            epochs.append(features.epoch)
            await until_level(other, level)
            assert other.epoch == features.epoch
        assert epochs == sorted(set(epochs)), "clients use the levels with the highest epoch"
        await other.stop()
        await features.update({NAME: 0})
        assert other.transaction_version == 2, "a stopped watch"


@pytest.mark.parametrize("exists", [False, True])
async def test_of_two_updates_at_once_one_is_refused(tmp_path: Path, exists: bool) -> None:
    async with opened(tmp_path) as (_, features):
        if exists:
            await features.update({NAME: 2})
        outcomes = await asyncio.gather(
            features.update({NAME: 0}), features.update({NAME: 1}), return_exceptions=True
        )
        refused = [one for one in outcomes if isinstance(one, KafkaError)]
        assert [one.code for one in refused] == [ErrorCode.FEATURE_UPDATE_FAILED]
        await until_level(features, 0 if outcomes[0] is None else 1)


async def test_the_levels_of_an_apache_kafka_cluster_without_the_feature(tmp_path: Path) -> None:
    """Kafka on ZooKeeper creates the node without features: it knows no ``transaction.version``."""
    async with opened(tmp_path) as (store, features):
        await store.transact([Create(FEATURE, b'{"version":2,"status":1,"features":{}}')])
        await until_level(features, 0)
        await features.update({NAME: 2})
        assert features.transaction_version == 2


async def test_a_level_of_a_later_version_becomes_the_highest_supported_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, features):
        await features.update({NAME: 0})
        node = b'{"version":2,"status":1,"features":{"transaction.version":7,"share.version":1}}'
        await store.transact([SetData(FEATURE, node)])
        await until_level(features, 2)
        assert "share.version" not in features.levels


async def test_an_unreadable_node_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(tmp_path) as (store, features):
        await features.update({NAME: 1})
        with caplog.at_level(logging.ERROR, "tidemill.broker"):
            await store.transact([SetData(FEATURE, b"{")])
            async with asyncio.timeout(10):
                while "the feature levels are those of before" not in caplog.text:  # noqa: ASYNC110 - there is no event
                    await asyncio.sleep(0.01)
        assert features.transaction_version == 1


class StoreWatch(Watch):
    """A watch that a test does not end."""

    def cancel(self) -> None: ...


class OneNode(Store):
    """A store with the node of the features. Reads raise the next of ``errors``."""

    def __init__(self) -> None:
        self.level = 2
        self.errors: list[Exception] = []
        self.watchers: list[Watcher] = []
        self.listeners: list[SessionListener] = []

    async def get(self, path: str) -> Node | None:
        if self.errors:
            raise self.errors.pop(0)
        return Node(FeatureNode.encode({"transaction.version": self.level}), 1, 1, 0)

    async def watch(self, path: str, watcher: Watcher) -> Watch:
        self.watchers.append(watcher)
        return StoreWatch()

    def on_session(self, listener: SessionListener) -> None:
        self.listeners.append(listener)

    def send_event(self) -> None:
        for watcher in self.watchers:
            watcher(Event(EventKind.DATA_CHANGED, FEATURE))


@pytest.fixture
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finalized_features, "READ_RETRY_S", 0.001)


@asynccontextmanager
async def started(store: OneNode) -> AsyncIterator[FinalizedFeatures]:
    features = FinalizedFeatures(store)
    await features.start()
    try:
        yield features
    finally:
        await features.stop()


@pytest.mark.usefixtures("short_pause")
async def test_a_change_that_cannot_be_read_is_read_again() -> None:
    store = OneNode()
    async with started(store) as features:
        assert features.transaction_version == 2
        store.level = 1
        store.errors = [StoreUnavailable("no store"), StoreUnavailable("no store")]
        store.send_event()
        await until_level(features, 1)
        assert store.errors == []


async def test_levels_are_read_after_the_end_of_a_session() -> None:
    """Changes between two sessions have no event."""
    store = OneNode()
    async with started(store) as features:
        store.level = 0
        for state in (SessionState.EXPIRED, SessionState.CONNECTED):
            for listener in store.listeners:
                listener(state)
        await until_level(features, 0)
        assert features.transaction_version == 0
