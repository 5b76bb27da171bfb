"""Settings that others wrote, beside notes and nodes that make no sense."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.broker.settings_watch import SettingsWatch
from tidemill.coordination.embedded import EmbeddedStore
from tidemill.coordination.image import ClusterImage, TopicImage
from tidemill.coordination.nodes import PERSISTENT_PATHS, ConfigChangeNode, ConfigNode
from tidemill.coordination.port import Create, SetData, StoreUnavailable, ensure_paths
from tidemill.model.errors import ErrorCode, KafkaError

ROOM_S = 10.0


class Taken:
    """What the broker was told of settings, and when."""

    def __init__(self) -> None:
        self.settings: dict[tuple[str, str], Mapping[str, str]] = {}
        self.changed = asyncio.Event()

    def topics_without_metadata(self) -> list[str]:
        return []

    async def take_settings(self, settings: Mapping[tuple[str, str], Mapping[str, str]]) -> None:
        self.settings |= settings
        self.changed.set()


class Office:
    """A controller that is replaced when it is about to take settings, which it did not know before."""

    def __init__(self) -> None:
        self.is_active = True

    async def take_settings(self, settings: Mapping[tuple[str, str], Mapping[str, str]]) -> None:
        self.is_active = False
        raise KafkaError("this broker is not the controller", ErrorCode.NOT_CONTROLLER)


class SilentOffice(Office):
    """As the store does not answer the controller, it takes the settings of a topic at the second try."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self.refused = topic

    async def take_settings(self, settings: Mapping[tuple[str, str], Mapping[str, str]]) -> None:
        if ("topics", self.refused) in settings:
            self.refused = ""
            raise StoreUnavailable("the connection broke")
        await super().take_settings(settings)


def test_who_loses_the_office_takes_settings_as_the_others_do(tmp_path: Path) -> None:
    told = follow(
        tmp_path,
        Create(ConfigNode.path("topics", "t"), ConfigNode.encode({"retention.ms": "9"})),
        Create(ConfigChangeNode.prefix, ConfigChangeNode.encode("topics", "t"), sequential=True),
    )
    assert told == {("topics", "t"): {"retention.ms": "9"}}


@pytest.mark.parametrize(
    "note",
    [
        b"{",
        b"[]",
        b'{"version":2}',
        b'{"version":2,"entity_path":"topics/"}',
        b'{"entity_path":"topics/a/b"}',
        b"7",
    ],
)
def test_a_note_that_makes_no_sense_has_everything_read_again(tmp_path: Path, note: bytes) -> None:
    """The settings of t changed: whatever the note of it says, this broker must not keep the old ones."""
    told = follow(
        tmp_path,
        Create(ConfigNode.path("topics", "t"), ConfigNode.encode({"retention.ms": "9"})),
        Create(ConfigNode.path("topics", "new"), ConfigNode.encode({"retention.ms": "8"})),
        Create(ConfigChangeNode.prefix, note, sequential=True),
        Create(ConfigChangeNode.prefix, ConfigChangeNode.encode("topics", "new"), sequential=True),
    )
    assert told["topics", "t"] == {"retention.ms": "9"}
    assert told["topics", "new"] == {"retention.ms": "8"}


@pytest.mark.parametrize("note", [b'"t"', b'{"version":1,"entity_type":"topics","entity_name":"t"}'])
def test_notes_of_older_tools_of_kafka_are_heeded(tmp_path: Path, note: bytes) -> None:
    """Kafka 0.8 writes the name of a topic as a JSON string, Kafka 0.9 an object of version 1."""
    told = follow(
        tmp_path,
        Create(ConfigNode.path("topics", "t"), ConfigNode.encode({"retention.ms": "9"})),
        Create(ConfigChangeNode.prefix, note, sequential=True),
    )
    assert told == {("topics", "t"): {"retention.ms": "9"}}


ODD_BESIDE_T = (
    Create(ConfigNode.path("topics", "odd"), b"{"),
    Create(ConfigNode.path("topics", "t"), ConfigNode.encode({"retention.ms": "9"})),
    Create(ConfigChangeNode.prefix, ConfigChangeNode.encode("topics", "odd"), sequential=True),
    Create(ConfigChangeNode.prefix, ConfigChangeNode.encode("topics", "t"), sequential=True),
)
"""Settings of two topics, of which one holds no settings."""


def test_settings_that_make_no_sense_keep_no_others_from_taking_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = follow(
        tmp_path,
        *ODD_BESIDE_T,
    )
    assert told == {("topics", "t"): {"retention.ms": "9"}}
    assert any("/config/topics/odd holds '{'" in record.getMessage() for record in caplog.records)


def test_settings_that_could_not_be_read_are_taken_once_they_can_without_a_note(tmp_path: Path) -> None:
    told = follow(
        tmp_path,
        *ODD_BESIDE_T,
        mended=SetData(ConfigNode.path("topics", "odd"), ConfigNode.encode({"retention.ms": "8"})),
    )
    assert told == {("topics", "odd"): {"retention.ms": "8"}}


def test_settings_that_can_be_read_again_are_taken_though_the_store_fails_at_first(tmp_path: Path) -> None:
    """The controller looks at the store before it takes them; no note has them read once more."""
    told = follow(
        tmp_path,
        *ODD_BESIDE_T,
        mended=SetData(ConfigNode.path("topics", "odd"), ConfigNode.encode({"retention.ms": "8"})),
        office=SilentOffice("odd"),
    )
    assert told == {("topics", "odd"): {"retention.ms": "8"}}


def follow(
    directory: Path, *written: Create, mended: SetData | None = None, office: Office | None = None
) -> dict[tuple[str, str], Mapping[str, str]]:
    """What a broker that watches hears of what is written, all at once, after it began."""

    async def story() -> dict[tuple[str, str], Mapping[str, str]]:
        store = EmbeddedStore.open(str(directory / "coordination.db"))
        await ensure_paths(store, PERSISTENT_PATHS)
        taken = Taken()
        broker: Any = SimpleNamespace(
            store=store,
            node_id=1,
            metadata=SimpleNamespace(image=ClusterImage(topics={"t": TopicImage("t", b"t" * 16, (), {})})),
            controller=office if office is not None else Office(),
            commands=taken,
        )
        watch = SettingsWatch(broker)
        watch.start()
        try:
            await asyncio.wait_for(taken.changed.wait(), ROOM_S)
            taken.settings.clear()
            taken.changed.clear()
            await store.transact(list(written))
            await asyncio.wait_for(taken.changed.wait(), ROOM_S)
            if mended is not None:
                taken.settings.clear()
                taken.changed.clear()
                await store.transact([mended])
                async with asyncio.timeout(ROOM_S):
                    while not taken.settings:
                        taken.changed.clear()
                        await taken.changed.wait()
            return taken.settings
        finally:
            await watch.stop()
            await store.close()

    return asyncio.run(story())
