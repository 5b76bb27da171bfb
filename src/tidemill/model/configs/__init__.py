"""The configuration: one table of all keys, and the values that apply to a broker and its topics."""

from __future__ import annotations

from tidemill.model.configs.all_keys import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS
from tidemill.model.configs.broker_config import BrokerConfig
from tidemill.model.configs.config_def import MIN_INSYNC, Key, Value
from tidemill.model.configs.config_values import Config, Synonym
from tidemill.model.configs.group_config import GroupConfig, check_group_settings
from tidemill.model.configs.listeners import Listener
from tidemill.model.configs.topic_config import (
    TopicConfig,
    all_brokers_unreadable,
    all_unreadable,
    brokers_while_unreadable,
    check_broker_settings,
    check_settings_together,
    check_topic_settings,
    topic_synonyms,
    while_unreadable,
)

__all__ = [
    "BROKER_KEYS",
    "GROUP_KEYS",
    "MIN_INSYNC",
    "TOPIC_KEYS",
    "BrokerConfig",
    "Config",
    "GroupConfig",
    "Key",
    "Listener",
    "Synonym",
    "TopicConfig",
    "Value",
    "all_brokers_unreadable",
    "all_unreadable",
    "brokers_while_unreadable",
    "check_broker_settings",
    "check_group_settings",
    "check_settings_together",
    "check_topic_settings",
    "topic_synonyms",
    "while_unreadable",
]
