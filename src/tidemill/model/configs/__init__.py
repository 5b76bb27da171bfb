"""The configuration: one table of all keys, and what comes of it for a broker and its topics."""

from __future__ import annotations

from tidemill.model.configs.broker import BrokerConfig
from tidemill.model.configs.group import GroupConfig, check_group_settings
from tidemill.model.configs.keys import MIN_INSYNC, Key, Value
from tidemill.model.configs.listeners import Listener
from tidemill.model.configs.tables import BROKER_KEYS, GROUP_KEYS, TOPIC_KEYS
from tidemill.model.configs.topic import (
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
from tidemill.model.configs.values import Config, Synonym

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
