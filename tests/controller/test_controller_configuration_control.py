"""Decisions about configuration changes."""

from __future__ import annotations

import pytest

from tidemill.controller.configuration_control import (
    Alteration,
    AlterOperation,
    altered,
    plan_broker_config,
    plan_topic_config,
    replacement,
)
from tidemill.controller.topics import check_settings
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.coordination_store import Create, SetData
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.model.configs import TOPIC_KEYS, BrokerConfig, TopicConfig
from tidemill.model.errors import ErrorCode, KafkaError

SET, DELETE, APPEND, SUBTRACT = AlterOperation


def image_with(
    config: dict[str, str], broker_configs: dict[str, dict[str, str]] | None = None
) -> ClusterImage:
    """Returns a cluster with the topic ``t`` of these settings."""
    topic = TopicImage("t", bytes(range(16)), (PartitionImage(0, 0, 0, [0], [0]),), config, 3)
    return ClusterImage("c", 0, 1, {}, {"t": topic}, broker_configs)


def topic_change(config: dict[str, str], *alterations: Alteration) -> dict[str, str]:
    """Returns the settings of the topic after the alterations."""
    plan = plan_topic_config(image_with(config), "t", BrokerConfig.of(), alterations)
    return dict(plan.settings)


FORMAT, ZSTD = {"message.format.version": "0.10.2"}, {"compression.type": "zstd"}
COMPACT, BOTH = {"cleanup.policy": "compact"}, {"cleanup.policy": "compact,delete"}


@pytest.mark.parametrize(
    ("before", "alterations", "after"),
    [
        pytest.param(
            {"retention.ms": "1", "segment.bytes": "1048576"},
            [Alteration("retention.ms", SET, "2"), Alteration("segment.bytes", DELETE, None)],
            {"retention.ms": "2"},
            id="settings are set and reset",
        ),
        pytest.param(
            {"retention.ms": "long", "cleanup.policy": "keep", "segment.bytes": "1048576"},
            [Alteration("retention.ms", SET, "2"), Alteration("cleanup.policy", DELETE, None)],
            {"retention.ms": "2", "segment.bytes": "1048576"},
            id="invalid stored settings can be replaced and reset",
        ),
        pytest.param(
            {}, [Alteration("nonsense", DELETE, None)], {}, id="an unset unknown setting can be reset"
        ),
        pytest.param(
            {"from.another.version": "1"},
            [Alteration("from.another.version", DELETE, None)],
            {},
            id="a stored unknown setting can be reset",
        ),
        pytest.param(
            FORMAT | ZSTD,
            [Alteration("compression.type", SET, "gzip")],
            FORMAT | {"compression.type": "gzip"},
            id="one of two contradictory settings can be set",
        ),
        pytest.param(
            FORMAT | ZSTD,
            [Alteration("message.format.version", DELETE, None)],
            ZSTD,
            id="one of two contradictory settings can be reset",
        ),
        pytest.param(
            {"message.format.version": "0.11.0"},
            [Alteration("compression.type", SET, "zstd")],
            {"message.format.version": "0.11.0", "compression.type": "zstd"},
            id="settings that go together are set",
        ),
        pytest.param(
            {},
            [Alteration("cleanup.policy", APPEND, "compact")],
            {"cleanup.policy": "delete,compact"},
            id="a list edit starts from the default",
        ),
        pytest.param(
            COMPACT,
            [Alteration("cleanup.policy", APPEND, "compact")],
            COMPACT,
            id="an element of the list is appended once",
        ),
        pytest.param(
            BOTH,
            [Alteration("cleanup.policy", SUBTRACT, "delete")],
            COMPACT,
            id="an element is removed from the list",
        ),
    ],
)
def test_alterations_are_applied_to_the_settings(
    before: dict[str, str], alterations: list[Alteration], after: dict[str, str]
) -> None:
    known = dict(before)
    assert topic_change(before, *alterations) == after
    assert before == known


def test_contradictory_settings_are_rejected_together() -> None:
    for first, second in ((FORMAT, ZSTD), (ZSTD, FORMAT)):
        ((name, value),) = second.items()
        with pytest.raises(KafkaError, match="do not go together: messages of that format") as caught:
            topic_change(first, Alteration(name, SET, value))
        assert caught.value.code == ErrorCode.INVALID_CONFIG
    with pytest.raises(KafkaError, match="do not go together"):
        check_settings("t", FORMAT | ZSTD)


def test_duplicates_in_a_list_count_once() -> None:
    config = TopicConfig(
        BrokerConfig.of(), topic_change({}, Alteration("cleanup.policy", SET, "delete,delete"))
    )
    assert config.rendered("cleanup.policy") == "delete"


def test_list_edits_start_from_the_effective_value() -> None:
    broker = BrokerConfig.of(log_cleanup_policy="compact")
    all_, touched = altered(
        {}, TopicConfig(broker, {}), TOPIC_KEYS, [Alteration("cleanup.policy", APPEND, "delete")]
    )
    assert all_ == touched == BOTH


@pytest.mark.parametrize(
    ("name", "alterations", "code"),
    [
        ("t", [Alteration("nonsense", SET, "1")], ErrorCode.INVALID_CONFIG),
        ("t", [Alteration("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
        ("t", [Alteration("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ("t", [Alteration("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ("t", [Alteration("cleanup.policy", APPEND, "burn")], ErrorCode.INVALID_CONFIG),
        ("t", [Alteration("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        (
            "t",
            [Alteration("retention.ms", SET, "1"), Alteration("retention.ms", DELETE, None)],
            ErrorCode.INVALID_REQUEST,
        ),
        ("missing", [], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a/b", [], ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", [], ErrorCode.INVALID_REQUEST),
    ],
)
def test_invalid_changes_are_rejected(name: str, alterations: list[Alteration], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as caught:
        plan_topic_config(image_with({}), name, BrokerConfig.of(), alterations)
    assert caught.value.code == code


MIRROR = "tidemill.mirror.state"


@pytest.mark.parametrize(
    ("before", "alteration", "after"),
    [
        ({MIRROR: "active"}, Alteration(MIRROR, SET, "promoting"), {MIRROR: "promoting"}),
        ({MIRROR: "promoting"}, Alteration(MIRROR, DELETE, None), {}),
        ({MIRROR: "promoting"}, Alteration(MIRROR, SET, "none"), {MIRROR: "none"}),
        ({MIRROR: "active"}, Alteration("retention.ms", SET, "1"), {MIRROR: "active", "retention.ms": "1"}),
        ({MIRROR: "active"}, Alteration(MIRROR, DELETE, None), None),
        ({MIRROR: "promoting"}, Alteration(MIRROR, SET, "active"), None),
        ({}, Alteration(MIRROR, SET, "active"), None),
        ({}, Alteration(MIRROR, SET, "promoting"), None),
        ({}, Alteration(MIRROR, SET, "none"), {MIRROR: "none"}),
    ],
)
def test_a_mirror_is_promoted_before_it_is_an_ordinary_topic(
    before: dict[str, str], alteration: Alteration, after: dict[str, str] | None
) -> None:
    if after is not None:
        assert topic_change(before, alteration) == after
        return
    with pytest.raises(KafkaError, match="cannot follow") as caught:
        topic_change(before, alteration)
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_a_replacement_of_the_settings_of_a_mirror_keeps_it_one() -> None:
    with pytest.raises(KafkaError, match="cannot follow active"):
        plan_topic_config(image_with({MIRROR: "active"}), "t", BrokerConfig.of(), None, [])


def test_a_replacement_resets_omitted_keys() -> None:
    plan = plan_topic_config(
        image_with({"retention.ms": "1"}), "t", BrokerConfig.of(), None, [("segment.bytes", "1048576")]
    )
    assert plan.settings == {"segment.bytes": "1048576"}
    assert plan.operations == [
        SetData("/config/topics/t", b'{"version":1,"config":{"segment.bytes":"1048576"}}')
    ]
    for wrong in ([("a", None)], [("a", "1"), ("a", "2")]):
        with pytest.raises(KafkaError):
            replacement(wrong)


def test_settings_of_a_broker_and_of_all_brokers_are_stored() -> None:
    config = BrokerConfig.of()
    change = [Alteration("log.retention.ms", SET, "5000")]
    one = plan_broker_config(image_with({}), "3", 3, config, change)
    assert one.operations == [
        Create("/config/brokers/3", b'{"version":1,"config":{"log.retention.ms":"5000"}}')
    ]
    every = plan_broker_config(
        image_with({}, {"<default>": {"log.retention.ms": "1"}}), "", 3, config, change
    )
    assert every.operations == [
        SetData("/config/brokers/<default>", b'{"version":1,"config":{"log.retention.ms":"5000"}}')
    ]


def test_a_cluster_always_has_one_min_insync_replicas() -> None:
    config = BrokerConfig.of({"zookeeper.connect": "zk:2181"})
    image = image_with({}, {"<default>": {"min.insync.replicas": "2", "log.retention.ms": "1"}})
    with pytest.raises(KafkaError, match="the same for all brokers of a cluster") as refused:
        plan_broker_config(image, "3", 3, config, [Alteration("min.insync.replicas", SET, "1")])
    assert refused.value.code == ErrorCode.INVALID_REQUEST
    changed = plan_broker_config(image, "", 3, config, [Alteration("min.insync.replicas", SET, "3")])
    assert changed.settings["min.insync.replicas"] == "3"
    deleted = plan_broker_config(image, "", 3, config, [Alteration("min.insync.replicas", DELETE, None)])
    assert deleted.settings["min.insync.replicas"] == "1"
    replaced = plan_broker_config(image, "", 3, config, None, [("log.retention.ms", "7")])
    assert replaced.settings == {"min.insync.replicas": "2", "log.retention.ms": "7"}


@pytest.mark.parametrize(
    ("name", "alterations"),
    [
        *[(name, []) for name in ("4", "x", "-3", " 3")],
        ("3", [Alteration("broker.id", SET, "4")]),
        ("3", [Alteration("nonsense", SET, "4")]),
        ("3", [Alteration("log.retention.ms", SET, "soon")]),
    ],
)
def test_settings_of_other_brokers_and_invalid_settings_are_rejected(
    name: str, alterations: list[Alteration]
) -> None:
    with pytest.raises(KafkaError) as caught:
        plan_broker_config(image_with({}), name, 3, BrokerConfig.of(), alterations)
    assert caught.value.code == ErrorCode.INVALID_REQUEST
    assert all(alteration.name in str(caught.value) for alteration in alterations)
