"""Plans and validates changes of settings.

This module has no I/O; see :mod:`tidemill.controller.topics`. Apache Kafka has its planning in
``ConfigurationControlManager``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from tidemill.controller.topic_name_validator import check_name
from tidemill.controller.topics import missing_topic, write_config
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.coordination_store import Delete, Operation
from tidemill.coordination.nodes import DEFAULT_ENTITY, ConfigNode, ConfigResource
from tidemill.coordination.topic_image import TopicImage
from tidemill.model.configs import (
    BROKER_KEYS,
    GROUP_KEYS,
    MIN_INSYNC,
    TOPIC_KEYS,
    BrokerConfig,
    Config,
    GroupConfig,
    Key,
    TopicConfig,
    check_broker_settings,
    check_group_settings,
    check_settings_together,
    check_topic_settings,
)
from tidemill.model.configs.config_def import LIST
from tidemill.model.errors import ConfigError, ErrorCode, KafkaError
from tidemill.model.mirror_state import check_state_change

GROUP_NAME_CHARACTERS_MAX = 1000
GROUPS_MAX = 100_000
"""The number of groups with settings. Every broker keeps them in memory, and a group need not exist."""
BROKER_ID_DIGITS_MAX = 10
"""Python refuses to parse numbers of thousands of digits."""


class ResourceType(IntEnum):
    """The type of a resource with settings, by its number in the protocol."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class AlterOperation(IntEnum):
    """The operation of IncrementalAlterConfigs on one key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    """The change of one key."""

    name: str
    operation: int
    value: str | None


class ConfigPlan(NamedTuple):
    """The operations that change the settings of one resource.

    One of ``topic`` (the new image), ``broker`` (the node name) and ``group`` is set.
    """

    operations: list[Operation]
    settings: Mapping[str, str]
    topic: TopicImage | None = None
    broker: str | None = None
    group: str | None = None

    @property
    def resource(self) -> ConfigResource:
        """The resource in the store."""
        if self.topic is not None:
            return ConfigResource("topics", self.topic.name)
        if self.group is not None:
            return ConfigResource("groups", self.group)
        return ConfigResource("brokers", self.broker or "")


def replacement(settings: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """The settings of an AlterConfigs request, which replace all settings of the resource."""
    replaced: dict[str, str] = {}
    for name, value in settings:
        if value is None:
            raise KafkaError(f"{name} has no value. To reset a key, omit it.", ErrorCode.INVALID_REQUEST)
        if name in replaced:
            raise KafkaError(f"{name} is given twice", ErrorCode.INVALID_REQUEST)
        replaced[name] = value
    return replaced


def altered(
    current: Mapping[str, str],
    effective: Config,
    keys: Mapping[str, Key],
    alterations: Sequence[Alteration] | None,
    settings: Sequence[tuple[str, str | None]] = (),
) -> tuple[dict[str, str], dict[str, str]]:
    """Applies ``alterations`` to ``current``, or if that is None, replaces all by ``settings``.

    Returns all settings, and those that were set.

    APPEND and SUBTRACT start from the effective value, configured or inherited.
    """
    if alterations is None:
        replaced = replacement(settings)
        return replaced, replaced
    result = dict(current)
    touched: dict[str, str] = {}
    seen: set[str] = set()
    for name, operation, value in alterations:
        if name in seen:
            raise KafkaError(f"{name} is given twice", ErrorCode.INVALID_REQUEST)
        seen.add(name)
        if operation == AlterOperation.DELETE:
            result.pop(name, None)
            continue
        if operation not in (AlterOperation.SET, AlterOperation.APPEND, AlterOperation.SUBTRACT):
            raise KafkaError(f"{name}: unknown operation {operation}", ErrorCode.INVALID_REQUEST)
        if value is None:
            raise KafkaError(f"{name} has no value. To reset a key, delete it.", ErrorCode.INVALID_REQUEST)
        if operation != AlterOperation.SET:
            value = _edited_list(name, AlterOperation(operation), value, effective, keys)
        result[name] = touched[name] = value
    return result, touched


def _edited_list(
    name: str, operation: AlterOperation, value: str, effective: Config, keys: Mapping[str, Key]
) -> str:
    key = keys.get(name)
    if key is None or key.type != LIST:
        raise KafkaError(
            f"{name} is not a list. {operation.name} applies to lists only; SET replaces a value",
            ErrorCode.INVALID_CONFIG,
        )
    members = dict.fromkeys(effective.list(name))
    for member in (part.strip() for part in value.split(",")):
        if operation == AlterOperation.SUBTRACT:
            members.pop(member, None)
        elif member:
            members.setdefault(member)
    return ",".join(members)


def plan_topic_config(
    image: ClusterImage,
    name: str,
    config: BrokerConfig,
    alterations: Sequence[Alteration] | None,
    settings: Sequence[tuple[str, str | None]] = (),
) -> ConfigPlan:
    """Plans ``alterations`` of the settings of a topic, or if that is None, all ``settings``."""
    if not name:
        raise KafkaError("settings for all topics are not supported: name a topic", ErrorCode.INVALID_REQUEST)
    check_name(name)
    topic = image.topics.get(name)
    if topic is None:
        raise missing_topic(image, name)
    result, touched = altered(
        topic.config, TopicConfig(config, topic.config), TOPIC_KEYS, alterations, settings
    )
    try:
        check_topic_settings(touched)
        if touched:
            check_settings_together(result)
        check_state_change(name, topic.config, result)
    except ConfigError as error:
        raise KafkaError(str(error), ErrorCode.INVALID_CONFIG) from None
    changed = TopicImage(topic.name, topic.topic_id, topic.partitions, result, topic.node_version, True)
    return ConfigPlan([write_config("topics", name, result, topic.has_config_node)], result, topic=changed)


def plan_broker_config(
    image: ClusterImage,
    name: str,
    broker_id: int,
    config: BrokerConfig,
    alterations: Sequence[Alteration] | None,
    settings: Sequence[tuple[str, str | None]] = (),
) -> ConfigPlan:
    """Plans a change of the dynamic settings of one broker, or, with an empty ``name``, of all brokers.

    ``config`` is the current configuration of this broker.
    """
    entity = DEFAULT_ENTITY
    if name:
        # Another broker forwards requests that change its own settings.
        if name not in map(str, image.brokers):
            check_own_broker(name, broker_id)
        entity = str(int(name))
    current = image.broker_configs.get(entity, {})
    result, touched = altered(current, config, BROKER_KEYS, alterations, settings)
    if config.store() == "zookeeper":
        _keep_min_insync(current, result, touched, name, is_replaced=alterations is None)
    try:
        check_broker_settings(touched, all_brokers=not name)
        if name:
            config.with_overrides(broker=result)
        else:
            config.with_overrides(cluster=result)
    except ConfigError as error:
        raise KafkaError(str(error), ErrorCode.INVALID_REQUEST) from None
    operation = write_config("brokers", entity, result, entity in image.broker_configs)
    return ConfigPlan([operation], result, broker=entity)


def plan_group_config(
    image: ClusterImage,
    name: str,
    config: BrokerConfig,
    alterations: Sequence[Alteration] | None,
    settings: Sequence[tuple[str, str | None]] = (),
    *,
    has_node: bool = False,
) -> ConfigPlan:
    """Plans a change of the settings of a group, which need not exist.

    ``config`` is the configuration of this broker. ``has_node``: the store has a settings node for the group.
    """
    if not name:
        raise KafkaError("settings for all groups are not supported: name a group", ErrorCode.INVALID_REQUEST)
    if len(name) > GROUP_NAME_CHARACTERS_MAX:
        raise KafkaError(
            f"the group name has {len(name)} characters: at most {GROUP_NAME_CHARACTERS_MAX} are allowed",
            ErrorCode.INVALID_REQUEST,
        )
    current = image.group_config(name)
    result, touched = altered(current, GroupConfig(config, current), GROUP_KEYS, alterations, settings)
    try:
        check_group_settings(touched, result, config)
    except ConfigError as error:
        raise KafkaError(str(error), ErrorCode.INVALID_CONFIG) from None
    if not has_node and len(image.group_configs) >= GROUPS_MAX:
        raise KafkaError(
            f"{GROUPS_MAX} groups have settings. Reset the settings of groups that no longer exist",
            ErrorCode.POLICY_VIOLATION,
        )
    operations: list[Operation] = []
    if result:
        operations.append(write_config("groups", name, result, has_node))
    elif has_node:
        operations.append(Delete(ConfigNode.path("groups", name)))
    return ConfigPlan(operations, result, group=name)


def _keep_min_insync(
    current: Mapping[str, str],
    result: dict[str, str],
    touched: Mapping[str, str],
    name: str,
    *,
    is_replaced: bool,
) -> None:
    """Keeps ``min.insync.replicas`` set, with one value for all brokers of a cluster.

    The controller derives eligible leader replicas from it, and each leader its high watermark. Deleting the
    key resets it to the default. A request that replaces all settings and omits the key leaves it unchanged.
    Source: KIP-966.
    """
    if name and MIN_INSYNC in touched:
        raise KafkaError(
            f"{MIN_INSYNC} is the same for all brokers of a cluster: set it for all of them, or for topics",
            ErrorCode.INVALID_REQUEST,
        )
    if not name and MIN_INSYNC in current and MIN_INSYNC not in result:
        key = BROKER_KEYS[MIN_INSYNC]
        result[MIN_INSYNC] = current[MIN_INSYNC] if is_replaced else str(key.default)


def check_own_broker(name: str, broker_id: int) -> None:
    """Raises INVALID_REQUEST unless ``name`` is the id of this broker."""
    if not (name.isascii() and name.isdigit() and len(name) <= BROKER_ID_DIGITS_MAX):
        raise KafkaError(f"{name!r} is not a broker id", ErrorCode.INVALID_REQUEST)
    if int(name) != broker_id:
        raise KafkaError(
            f"this is broker {broker_id}, not {name}: send the request to that broker",
            ErrorCode.INVALID_REQUEST,
        )
