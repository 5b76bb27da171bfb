"""Topics that are created on a client's request for their metadata."""

from __future__ import annotations

from tidemill.controller.auto_created_topics import automatic_topic
from tidemill.model.configs import BrokerConfig


def test_internal_topics_have_their_own_settings_and_the_possible_number_of_replicas() -> None:
    config = BrokerConfig.of()
    offsets = automatic_topic(config, "__consumer_offsets", 1)
    assert offsets.partition_count == 50
    assert offsets.replication_factor == 1
    assert offsets.config["cleanup.policy"] == "compact"
    transactions = automatic_topic(config, "__transaction_state", 1)
    assert transactions.config["min.insync.replicas"] == "1"


def test_internal_topics_of_a_cluster_have_the_configured_replication_factor() -> None:
    config = BrokerConfig.of(offsets_topic_replication_factor=3)
    assert automatic_topic(config, "__consumer_offsets").replication_factor == 3
    assert automatic_topic(config, "__transaction_state").config["min.insync.replicas"] == "2"


def test_other_topics_get_the_broker_defaults() -> None:
    wanted = automatic_topic(BrokerConfig.of(), "t")
    assert (wanted.partition_count, wanted.replication_factor, dict(wanted.config)) == (-1, -1, {})
