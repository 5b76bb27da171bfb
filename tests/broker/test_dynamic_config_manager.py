"""Settings that were written to the store, with unreadable notifications and nodes among them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tidemill.broker.dynamic_config_manager import DynamicConfigManager
from tidemill.broker.metadata_cache import MetadataCache
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.coordination_store import Create, SetData, StoreUnavailable, ensure_paths
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.nodes import PERSISTENT_PATHS, ConfigChangeNode, ConfigNode, ConfigResource
from tidemill.coordination.topic_image import TopicImage
from tidemill.model.errors import ErrorCode, KafkaError

ROOM_S = 10.0


class RecordingRequests:
    """Records the applied settings."""

    def __init__(self) -> None:
        self.settings: dict[tuple[str, str], Mapping[str, str]] = {}
        self.changed = asyncio.Event()

    def topics_without_metadata(self) -> list[str]:
        return []

    async def apply_settings(self, settings: Mapping[ConfigResource, Mapping[str, str]]) -> None:
        self.settings |= settings
        self.changed.set()


class ReplacedController:
    """A controller that is replaced when it applies settings, and learns it then."""

    def __init__(self) -> None:
        self.is_active = True
        self.context = self

    async def apply_stored_settings(self, settings: Mapping[ConfigResource, Mapping[str, str]]) -> None:
        self.is_active = False
        raise KafkaError("this broker is not the controller", ErrorCode.NOT_CONTROLLER)


class SilentController(ReplacedController):
    """A controller for which the store fails once, when it applies the settings of a topic."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self.refused = topic

    async def apply_stored_settings(self, settings: Mapping[ConfigResource, Mapping[str, str]]) -> None:
        if ("topics", self.refused) in settings:
            self.refused = ""
            raise StoreUnavailable("the connection broke")
        await super().apply_stored_settings(settings)


@pytest.mark.parametrize(
    "notification",
    [
        b"{",
        b"[]",
        b'{"version":2}',
        b'{"version":2,"entity_path":"topics/"}',
        b'{"entity_path":"topics/a/b"}',
        b"7",
    ],
)
def test_an_unreadable_notification_has_all_settings_read(tmp_path: Path, notification: bytes) -> None:
    """The settings of t have changed: this broker must not keep the old ones."""
    applied = run_with_notifications(
        tmp_path,
        Create(ConfigNode.path("topics", "t"), ConfigNode.encode({"retention.ms": "9"})),
        Create(ConfigNode.path("topics", "new"), ConfigNode.encode({"retention.ms": "8"})),
        Create(ConfigChangeNode.prefix, notification, sequential=True),
        Create(ConfigChangeNode.prefix, ConfigChangeNode.encode("topics", "new"), sequential=True),
    )
    assert applied["topics", "t"] == {"retention.ms": "9"}
    assert applied["topics", "new"] == {"retention.ms": "8"}


@pytest.mark.parametrize(
    "notification",
    [
        pytest.param(b'"t"', id="of Kafka 0.8"),
        pytest.param(b'{"version":1,"entity_type":"topics","entity_name":"t"}', id="of Kafka 0.9"),
        pytest.param(ConfigChangeNode.encode("topics", "t"), id="of later versions"),
    ],
)
def test_notifications_of_all_versions_are_processed(tmp_path: Path, notification: bytes) -> None:
    """The controller is replaced when it applies the settings, and applies them as other brokers."""
    applied = run_with_notifications(
        tmp_path,
        Create(ConfigNode.path("topics", "t"), ConfigNode.encode({"retention.ms": "9"})),
        Create(ConfigChangeNode.prefix, notification, sequential=True),
    )
    assert applied == {("topics", "t"): {"retention.ms": "9"}}


ODD_BESIDE_T = (
    Create(ConfigNode.path("topics", "odd"), b"{"),
    Create(ConfigNode.path("topics", "t"), ConfigNode.encode({"retention.ms": "9"})),
    Create(ConfigChangeNode.prefix, ConfigChangeNode.encode("topics", "odd"), sequential=True),
    Create(ConfigChangeNode.prefix, ConfigChangeNode.encode("topics", "t"), sequential=True),
)
"""The settings of two topics, of which those of one are unreadable."""


def test_unreadable_settings_do_not_affect_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    applied = run_with_notifications(
        tmp_path,
        *ODD_BESIDE_T,
    )
    assert applied == {("topics", "t"): {"retention.ms": "9"}}
    assert any("/config/topics/odd holds '{'" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("controller", [None, "odd"], ids=["at once", "after a store failure"])
def test_unreadable_settings_are_applied_when_they_are_readable_again(
    tmp_path: Path, controller: str | None
) -> None:
    """A controller reads the store before it applies them. No further notification is written."""
    applied = run_with_notifications(
        tmp_path,
        *ODD_BESIDE_T,
        corrected=SetData(ConfigNode.path("topics", "odd"), ConfigNode.encode({"retention.ms": "8"})),
        controller=SilentController(controller) if controller else None,
    )
    assert applied == {("topics", "odd"): {"retention.ms": "8"}}


def run_with_notifications(
    directory: Path,
    *written: Create,
    corrected: SetData | None = None,
    controller: ReplacedController | None = None,
) -> dict[tuple[str, str], Mapping[str, str]]:
    """Writes to the store at once after a broker has started to watch.

    Returns the settings that it applies.
    """

    async def story() -> dict[tuple[str, str], Mapping[str, str]]:
        store = EmbeddedStore.open(str(directory / "coordination.db"))
        await ensure_paths(store, PERSISTENT_PATHS)
        requests = RecordingRequests()
        metadata = MetadataCache(ClusterImage(topics={"t": TopicImage("t", b"t" * 16, (), {})}))
        its_controller: Any = controller if controller is not None else ReplacedController()
        applier: Any = requests
        watch = DynamicConfigManager(1, store, metadata, its_controller, applier, requests)
        watch.start()
        try:
            await asyncio.wait_for(requests.changed.wait(), ROOM_S)
            requests.settings.clear()
            requests.changed.clear()
            await store.transact(list(written))
            await asyncio.wait_for(requests.changed.wait(), ROOM_S)
            if corrected is not None:
                requests.settings.clear()
                requests.changed.clear()
                await store.transact([corrected])
                async with asyncio.timeout(ROOM_S):
                    while not requests.settings:
                        requests.changed.clear()
                        await requests.changed.wait()
            return requests.settings
        finally:
            await watch.stop()
            await store.close()

    return asyncio.run(story())
