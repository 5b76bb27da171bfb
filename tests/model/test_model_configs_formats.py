"""Message formats by the Kafka versions that introduced them."""

from __future__ import annotations

import pytest

from tidemill.broker.log_configs import log_config
from tidemill.model.configs import TOPIC_KEYS, BrokerConfig, check_topic_settings
from tidemill.model.configs.message_format_versions import magic_of
from tidemill.model.errors import ConfigError

OLDEST = ["0.8.0", "0.8.1", "0.8.2", "0.8.2.2", "0.9.0", "0.9.0.1"]
TIMESTAMPS = ["0.10.0", "0.10.0-IV0", "0.10.0-IV1", "0.10.1-IV2", "0.10.1.1", "0.10.2", "0.10.2-IV0"]
BATCHES = ["0.11.0", "0.11.0-IV0", "0.11.0.3", "1.0", "1.0-IV0", "2.8", "2.8-IV1", "2.8.2", "3.0-IV1", "3.9"]


@pytest.mark.parametrize(
    ("version", "magic"),
    [(one, 0) for one in OLDEST] + [(one, 1) for one in TIMESTAMPS] + [(one, 2) for one in BATCHES],
)
def test_a_version_selects_its_format(version: str, magic: int) -> None:
    assert magic_of(version) == magic
    check_topic_settings({"message.format.version": version})
    stored = log_config(BrokerConfig.of(), "t", {"message.format.version": version})
    assert stored.message_magic == magic


@pytest.mark.parametrize(
    "version",
    ["", "0.7.2", "0.8", "0.12.0", "0.9.0-IV0", "0.10.0-IV2", "2.9", "3.0-IV2", "3.0-IV", "two", "v1"],
)
def test_the_error_of_an_invalid_version_names_the_valid_versions(version: str) -> None:
    with pytest.raises(ConfigError, match=r"0\.8\.0 to 3\.9"):
        magic_of(version)
    with pytest.raises(ConfigError, match=r"message.format.version=.*0\.8\.0 to 3\.9"):
        check_topic_settings({"message.format.version": version})


def test_the_format_of_the_broker_applies_to_topics_without_a_format() -> None:
    config = BrokerConfig.of(
        {"log.message.format.version": "0.9.0.1", "log.message.downconversion.enable": "false"}
    )
    stored = log_config(config, "t", {})
    assert (stored.message_magic, stored.message_downconversion_enable) == (0, False)
    own = {"message.format.version": "0.10.2", "message.downconversion.enable": "true"}
    stored = log_config(config, "t", own)
    assert (stored.message_magic, stored.message_downconversion_enable) == (1, True)


def test_the_newest_format_is_the_default() -> None:
    assert TOPIC_KEYS["message.format.version"].default == "3.0-IV1"
    assert log_config(BrokerConfig.of(), "t", {}).message_magic == 2
