"""Decisions about settings."""

from __future__ import annotations

import pytest

from tidemill.controller.configs import (
    Alteration,
    AlterOperation,
    altered,
    plan_broker_config,
    plan_topic_config,
    replacement,
)
from tidemill.controller.topics import check_settings
from tidemill.coordination.image import ClusterImage, PartitionImage, TopicImage
from tidemill.coordination.port import Create, SetData
from tidemill.model.configs import TOPIC_KEYS, BrokerConfig
from tidemill.model.errors import ErrorCode, KafkaError

SET, DELETE, APPEND, SUBTRACT = AlterOperation


def image_with(
    config: dict[str, str], broker_configs: dict[str, dict[str, str]] | None = None
) -> ClusterImage:
    """A cluster with the topic ``t`` of these settings."""
    topic = TopicImage("t", bytes(range(16)), (PartitionImage(0, 0, 0, [0], [0]),), config, 3)
    return ClusterImage("c", 0, 1, {}, {"t": topic}, broker_configs)


def topic_change(config: dict[str, str], *alterations: Alteration) -> dict[str, str]:
    """The settings of the topic after the alterations."""
    plan = plan_topic_config(image_with(config), "t", BrokerConfig.of(), alterations)
    return dict(plan.settings)


def test_settings_are_set_and_reset() -> None:
    before = {"retention.ms": "1", "segment.bytes": "1048576"}
    after = topic_change(
        before, Alteration("retention.ms", SET, "2"), Alteration("segment.bytes", DELETE, None)
    )
    assert after == {"retention.ms": "2"}
    assert before == {"retention.ms": "1", "segment.bytes": "1048576"}


def test_settings_that_make_no_sense_are_replaced_and_reset_as_others_are() -> None:
    before = {"retention.ms": "long", "cleanup.policy": "keep", "segment.bytes": "1048576"}
    after = topic_change(
        before, Alteration("retention.ms", SET, "2"), Alteration("cleanup.policy", DELETE, None)
    )
    assert after == {"retention.ms": "2", "segment.bytes": "1048576"}


def test_settings_that_let_no_message_in_are_refused_together() -> None:
    old, zstd = ("message.format.version", "0.10.2"), ("compression.type", "zstd")
    for first, second in ((old, zstd), (zstd, old)):
        with pytest.raises(KafkaError, match="do not go together: messages of that format") as told:
            topic_change(dict([first]), Alteration(second[0], SET, second[1]))
        assert told.value.code == ErrorCode.INVALID_CONFIG
    with pytest.raises(KafkaError, match="do not go together"):
        check_settings(dict([old, zstd]))
    both = dict([old, zstd])
    assert topic_change(both, Alteration("compression.type", SET, "gzip")) == {
        **both,
        "compression.type": "gzip",
    }
    assert topic_change(both, Alteration("message.format.version", DELETE, None)) == dict([zstd])
    with_new = {"message.format.version": "0.11.0"}
    assert topic_change(with_new, Alteration(zstd[0], SET, zstd[1])) == {
        **with_new,
        "compression.type": "zstd",
    }


def test_what_comes_twice_in_a_list_counts_once() -> None:
    config = BrokerConfig.of().topic_config(
        topic_change({}, Alteration("cleanup.policy", SET, "delete,delete"))
    )
    assert config.rendered("cleanup.policy") == "delete"


def test_lists_are_edited_from_the_value_that_holds() -> None:
    assert topic_change({}, Alteration("cleanup.policy", APPEND, "compact")) == {
        "cleanup.policy": "delete,compact"
    }
    compact = {"cleanup.policy": "compact"}
    assert topic_change(compact, Alteration("cleanup.policy", APPEND, "compact")) == compact
    both = {"cleanup.policy": "compact,delete"}
    assert topic_change(both, Alteration("cleanup.policy", SUBTRACT, "delete")) == compact
    broker = BrokerConfig.of(log_cleanup_policy="compact")
    all_, touched = altered(
        {}, broker.topic_config(), TOPIC_KEYS, [Alteration("cleanup.policy", APPEND, "delete")]
    )
    assert all_ == touched == {"cleanup.policy": "compact,delete"}


@pytest.mark.parametrize(
    ("alterations", "code"),
    [
        ([Alteration("nonsense", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([Alteration("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
        ([Alteration("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([Alteration("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([Alteration("cleanup.policy", APPEND, "burn")], ErrorCode.INVALID_CONFIG),
        ([Alteration("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        (
            [Alteration("retention.ms", SET, "1"), Alteration("retention.ms", DELETE, None)],
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
def test_changes_that_cannot_be(alterations: list[Alteration], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as caught:
        plan_topic_config(image_with({}), "t", BrokerConfig.of(), alterations)
    assert caught.value.code == code


def test_a_setting_that_nobody_knows_can_be_reset() -> None:
    assert topic_change({}, Alteration("nonsense", DELETE, None)) == {}
    assert topic_change({"from.another.version": "1"}, Alteration("from.another.version", DELETE, None)) == {}


def test_replacement_takes_back_what_it_does_not_name() -> None:
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


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_topic_that_is_not_there_has_no_settings(name: str, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as caught:
        plan_topic_config(image_with({}), name, BrokerConfig.of(), [])
    assert caught.value.code == code


def test_run_time_settings_of_one_broker_and_of_all() -> None:
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


def test_a_cluster_always_has_one_minimum_of_replicas_in_sync() -> None:
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


@pytest.mark.parametrize("name", ["4", "x", "-3", " 3"])
def test_another_brokers_settings_are_not_changed_here(name: str) -> None:
    with pytest.raises(KafkaError) as caught:
        plan_broker_config(image_with({}), name, 3, BrokerConfig.of(), [])
    assert caught.value.code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "alteration",
    [
        Alteration("broker.id", SET, "4"),
        Alteration("nonsense", SET, "4"),
        Alteration("log.retention.ms", SET, "soon"),
    ],
)
def test_broker_settings_that_cannot_be_changed_while_it_runs(alteration: Alteration) -> None:
    with pytest.raises(KafkaError, match=alteration.name) as caught:
        plan_broker_config(image_with({}), "3", 3, BrokerConfig.of(), [alteration])
    assert caught.value.code == ErrorCode.INVALID_REQUEST
