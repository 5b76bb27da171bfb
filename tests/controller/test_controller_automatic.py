"""Topics that are made because somebody asked for them."""

from __future__ import annotations

from tidemill.controller.automatic import automatic_topic
from tidemill.model.configs import BrokerConfig


def test_internal_topics_have_settings_of_their_own_and_as_many_replicas_as_can_be() -> None:
    config = BrokerConfig.of()
    offsets = automatic_topic(config, "__consumer_offsets", 1)
    assert offsets.partition_count == 50
    assert offsets.replication_factor == 1
    assert offsets.config["cleanup.policy"] == "compact"
    transactions = automatic_topic(config, "__transaction_state", 1)
    assert transactions.config["min.insync.replicas"] == "1"


def test_in_a_cluster_the_configured_factor_holds() -> None:
    config = BrokerConfig.of(offsets_topic_replication_factor=3)
    assert automatic_topic(config, "__consumer_offsets").replication_factor == 3
    assert automatic_topic(config, "__transaction_state").config["min.insync.replicas"] == "2"


def test_other_topics_get_what_the_broker_has_for_all() -> None:
    wanted = automatic_topic(BrokerConfig.of(), "t")
    assert (wanted.partition_count, wanted.replication_factor, dict(wanted.config)) == (-1, -1, {})
