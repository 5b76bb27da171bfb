"""Settings of groups are set, reset, checked, applied and stored as by Apache Kafka 4.3.1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_dynamic_config_manager import run_with_notifications
from test_handlers_topics import (
    BROKER,
    DELETE,
    GROUP,
    LOGGER,
    SET,
    TOPIC,
    SmallBroker,
    broker_in,
    change,
    describe,
    new_topics,
)

from tidemill.coordination.cluster_image import GROUP_SETTINGS, ClusterImage
from tidemill.coordination.cluster_image_loader import load_image
from tidemill.coordination.coordination_store import Create, ensure_paths
from tidemill.coordination.embedded_store import EmbeddedStore
from tidemill.coordination.nodes import ConfigChangeNode, ConfigNode, ConfigResource
from tidemill.model.configs import BrokerConfig, GroupConfig
from tidemill.model.configs.config_values import DEFAULT, DYNAMIC_GROUP
from tidemill.model.errors import ErrorCode
from tidemill.wire.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from tidemill.wire.messages.list_config_resources import ListConfigResourcesRequest

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
STRANGE_NAMES = ("a/b c%<default>", ".", "..", "<default>", "żółw", "x" * 1000)


async def altered(broker: SmallBroker, name: str, *changes: tuple[str, int, str | None]) -> tuple[int, str]:
    (found,) = (await broker.ask(change(GROUP, name, *changes), 1)).responses
    return found.error_code, found.error_message or ""


async def described(broker: SmallBroker, name: str, key: str) -> list[tuple[str, str, int]]:
    """Returns the effective value, and all of its sources."""
    (result,) = (await broker.ask(describe(GROUP, name, key, synonyms=True), 4)).results
    (config,) = result.configs
    return [("", config.value, config.config_source)] + [
        (one.name, one.value, one.source) for one in config.synonyms
    ]


async def listed(broker: SmallBroker, *kinds: int, version: int = 1) -> Any:
    request = ListConfigResourcesRequest(resource_types=list(kinds))
    answer = await broker.ask(request, version)
    return answer.error_code, [(one.resource_type, one.resource_name) for one in answer.config_resources]


async def test_settings_of_a_group_are_set_described_and_reset(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        inherited = ("group.consumer.session.timeout.ms", "45000", 5)
        assert await described(broker, "g", SESSION) == [("", "45000", 5), inherited]
        assert await altered(broker, "g", (SESSION, SET, "50000"), (HEARTBEAT, SET, "6000")) == (0, "")
        assert await described(broker, "g", SESSION) == [
            ("", "50000", 8),
            (SESSION, "50000", 8),
            inherited,
        ]
        assert await described(broker, "other", SESSION) == [("", "45000", 5), inherited]
        assert await altered(broker, "g", (SESSION, DELETE, None)) == (0, "")
        assert await described(broker, "g", SESSION) == [("", "45000", 5), inherited]
        assert (await described(broker, "g", HEARTBEAT))[0] == ("", "6000", 8)
        assert (await described(broker, "g", "share.auto.offset.reset")) == [
            ("", "latest", 5),
            ("share.auto.offset.reset", "latest", 5),
        ]


async def test_alter_configs_replaces_all_settings_of_a_group(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        await altered(broker, "g", (HEARTBEAT, SET, "6000"))
        wanted = [AlterableConfig(name=SESSION, value="47000")]
        resource = AlterConfigsResource(resource_type=GROUP, resource_name="g", configs=wanted)
        answer = await broker.ask(AlterConfigsRequest(resources=[resource]), 2)
        assert answer.responses[0].error_code == 0
        assert broker.metadata_cache.image.group_config("g") == {SESSION: "47000"}


@pytest.mark.parametrize(
    ("name", "key", "value", "code", "text"),
    [
        ("g", SESSION, "1000", ErrorCode.INVALID_CONFIG, "at least group.consumer.min.session.timeout.ms"),
        ("g", SESSION, "100000", ErrorCode.INVALID_CONFIG, "at most group.consumer.max.session.timeout.ms"),
        ("g", HEARTBEAT, "1", ErrorCode.INVALID_CONFIG, "group.consumer.min.heartbeat.interval.ms"),
        ("g", SESSION, "abc", ErrorCode.INVALID_CONFIG, "allowed is a whole number"),
        ("g", "session.timeout.ms", "50000", ErrorCode.INVALID_CONFIG, "Unknown group config name"),
        ("", SESSION, "50000", ErrorCode.INVALID_REQUEST, "name a group"),
        ("x" * 1001, SESSION, "50000", ErrorCode.INVALID_REQUEST, "1000 are allowed"),
        ("g", "share.auto.offset.reset", "never", ErrorCode.INVALID_CONFIG, "by_duration:PT1H"),
        ("g", "share.auto.offset.reset", "by_duration:P", ErrorCode.INVALID_CONFIG, "by_duration:PT1H"),
        ("g", "share.auto.offset.reset", "by_duration:PT1H", 0, ""),
        ("g", "share.auto.offset.reset", "by_duration:P2DT3H4.5S", 0, ""),
        ("g", "share.isolation.level", "serializable", ErrorCode.INVALID_CONFIG, "read_committed"),
        ("g", "share.record.lock.duration.ms", "1000", ErrorCode.INVALID_CONFIG, "min.record.lock"),
        ("g", "streams.num.standby.replicas", "9", ErrorCode.INVALID_CONFIG, "group.streams.max.standby"),
        ("g", "streams.num.standby.replicas", "2", 0, ""),
    ],
)
async def test_a_group_accepts_the_settings_that_apache_kafka_accepts(
    tmp_path: Path, name: str, key: str, value: str, code: int, text: str
) -> None:
    async with broker_in(tmp_path) as broker:
        found, applied = await altered(broker, name, (key, SET, value))
        assert found == code
        assert text in applied
        assert bool(broker.metadata_cache.image.group_configs) == (code == 0)


async def test_the_session_timeout_must_exceed_the_heartbeat_interval(tmp_path: Path) -> None:
    wide = {"group_consumer_max_heartbeat_interval_ms": "90000"}
    async with broker_in(tmp_path, **wide) as broker:
        code, text = await altered(broker, "g", (HEARTBEAT, SET, "45000"))
        assert code == ErrorCode.INVALID_CONFIG
        assert f"{SESSION}=45000 must be greater than {HEARTBEAT}=45000" in text
        assert await altered(broker, "g", (HEARTBEAT, SET, "45000"), (SESSION, SET, "46000")) == (0, "")


async def test_settings_of_groups_with_unusual_names_survive_a_restart(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        for name in STRANGE_NAMES:
            assert await altered(broker, name, (SESSION, SET, "46000")) == (0, ""), name
        request = change(GROUP, "unchanged", (SESSION, SET, "46000"), validate_only=True)
        assert (await broker.ask(request, 1)).responses[0].error_code == 0
    async with broker_in(tmp_path) as broker:
        assert set(broker.controller.image.group_configs) == set(STRANGE_NAMES)
        for name in STRANGE_NAMES:
            assert await altered(broker, name, (SESSION, DELETE, None)) == (0, ""), name
    async with broker_in(tmp_path) as broker:
        assert broker.controller.image.group_configs == {}


async def test_an_existing_node_without_settings_is_overwritten(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        path = ConfigNode.path("groups", "g")
        await broker.store.transact([Create(path, ConfigNode.encode({}))])
        assert await altered(broker, "g", (SESSION, SET, "46000")) == (0, "")


async def test_unreadable_settings_of_a_group_do_not_affect_other_groups(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        await broker.store.transact(
            [
                Create(ConfigNode.path("groups", "odd"), b"{"),
                Create(ConfigNode.path("groups", "even"), ConfigNode.encode({SESSION: "46000"})),
            ]
        )
        image = await load_image(broker.store)
        assert dict(image.group_configs) == {"even": {SESSION: "46000"}}
        assert set(image.unreadable_of(GROUP_SETTINGS)) == {"odd"}
        mended = image.with_settings({ConfigResource("groups", "odd"): {SESSION: "47000"}})
        assert mended.group_config("odd") == {SESSION: "47000"}
        assert not mended.unreadable


def test_invalid_values_of_a_group_are_ignored() -> None:
    config = GroupConfig(BrokerConfig.of(), {SESSION: "soon", HEARTBEAT: "6000", "gone.key": "1"})
    assert (config.int(SESSION), config.int(HEARTBEAT)) == (45_000, 6000)
    sources = [config.synonyms(key)[0].source for key in (SESSION, HEARTBEAT)]
    assert sources == [DEFAULT, DYNAMIC_GROUP]


async def test_resources_with_settings_are_listed_as_apache_kafka_lists_them(tmp_path: Path) -> None:
    async with broker_in(tmp_path) as broker:
        await broker.ask(new_topics("t"), 7)
        await altered(broker, "g", (SESSION, SET, "46000"))
        everything = [(GROUP, "g"), (LOGGER, "7"), (BROKER, "7"), (TOPIC, "t")]
        assert await listed(broker) == (0, everything)
        assert await listed(broker, TOPIC, GROUP, TOPIC) == (0, [(GROUP, "g"), (TOPIC, "t")])
        assert await listed(broker, 16) == (0, [])
        assert await listed(broker, 1) == (ErrorCode.UNSUPPORTED_VERSION, [])
        assert await listed(broker, version=0) == (0, [])
        await altered(broker, "g", (SESSION, DELETE, None))
        assert await listed(broker, GROUP) == (0, [])


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_other_brokers_apply_the_settings_of_a_group(tmp_path: Path, name: str) -> None:
    applied = run_with_notifications(
        tmp_path,
        Create(ConfigNode.path("groups", name), ConfigNode.encode({SESSION: "46000"})),
        Create(ConfigChangeNode.prefix, ConfigChangeNode.encode("groups", name), sequential=True),
    )
    assert applied == {ConfigResource("groups", name): {SESSION: "46000"}}
    image = ClusterImage().with_settings(applied)
    assert image.group_config(name) == {SESSION: "46000"}
    assert image.with_settings(applied) is image
    assert image.with_settings({ConfigResource("groups", name): {}}).group_configs == {}


def test_settings_with_an_unreadable_notification_are_read_from_the_store(tmp_path: Path) -> None:
    applied = run_with_notifications(
        tmp_path,
        Create(ConfigNode.path("groups", "g"), ConfigNode.encode({SESSION: "46000"})),
        Create(ConfigChangeNode.prefix, b"{", sequential=True),
    )
    assert applied["groups", "g"] == {SESSION: "46000"}


async def test_a_store_of_an_earlier_version_has_no_groups(tmp_path: Path) -> None:
    store = EmbeddedStore.open(str(tmp_path / "coordination.db"))
    await ensure_paths(store, ["/config/topics", "/config/brokers"])
    assert (await load_image(store)).group_configs == {}
    await store.close()
