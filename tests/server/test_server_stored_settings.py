"""A broker over settings in its store that make no sense."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tidemill.client import Admin, ConfigResource, ResourceType
from tidemill.coordination.embedded import FILE_NAME, EmbeddedStore
from tidemill.coordination.nodes import ConfigNode
from tidemill.coordination.port import SetData
from tidemill.testing import Broker


def write_settings(data: Path, topic: str, settings: dict[str, str]) -> None:
    """Writes a topic's settings as no broker would let anybody do it."""

    async def story() -> None:
        store = EmbeddedStore.open(str(data / FILE_NAME))
        await store.transact([SetData(ConfigNode.path("topics", topic), ConfigNode.encode(settings))])
        await store.close()

    asyncio.run(story())


def test_a_topic_setting_that_makes_no_sense_is_named_and_can_be_mended(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data_dir=data) as broker, Admin(broker.bootstrap) as admin:
        admin.create_topic("t", 2, configs={"retention.ms": "70000", "segment.bytes": "1048576"})
    write_settings(data, "t", {"retention.ms": "a week", "segment.bytes": "1048576"})
    with Broker(data_dir=data) as broker, Admin(broker.bootstrap) as admin:
        told = [line for line in broker.log.splitlines() if "a week" in line]
        shown = admin.topic_configs("t")
        assert (shown["retention.ms"].value, shown["segment.bytes"].value) == ("-1", "1048576")
        admin.alter_configs(ConfigResource(ResourceType.TOPIC, "t"), {"retention.ms": "80000"})
        assert admin.topic_configs("t")["retention.ms"].value == "80000"
    assert told
    assert all(
        "topic t: its setting retention.ms=a week: allowed is a whole number" in line
        and "-1 holds until it is set again" in line
        for line in told
    )
