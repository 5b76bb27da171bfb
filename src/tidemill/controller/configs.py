"""Decisions about settings: what a change makes of them, and whether they may be so.

No input or output here; see :mod:`tidemill.controller.topics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from tidemill.controller.names import check_name
from tidemill.controller.topics import missing_topic, write_config
from tidemill.coordination.image import ClusterImage, TopicImage
from tidemill.coordination.nodes import DEFAULT_ENTITY, ConfigNode
from tidemill.coordination.port import Delete, Operation
from tidemill.model.configs import (
    BROKER_KEYS,
    GROUP_KEYS,
    MIN_INSYNC,
    TOPIC_KEYS,
    BrokerConfig,
    Config,
    GroupConfig,
    Key,
    check_broker_settings,
    check_group_settings,
    check_settings_together,
    check_topic_settings,
)
from tidemill.model.configs.keys import LIST
from tidemill.model.errors import ConfigError, ErrorCode, KafkaError

GROUP_NAME_CHARACTERS_MAX = 1000
GROUPS_MAX = 100_000
"""Groups with settings: every broker holds them in memory, and a group need not exist to have some."""
BROKER_ID_DIGITS_MAX = 10
"""Python refuses to read numbers of thousands of digits."""


class ResourceType(IntEnum):
    """What a configuration belongs to, as the protocol numbers it."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class AlterOperation(IntEnum):
    """What IncrementalAlterConfigs does with one key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    """One key's change."""

    name: str
    operation: int
    value: str | None


class ConfigPlan(NamedTuple):
    """What to write for one resource.

    ``topic`` is a topic's new image, ``broker`` a broker's node name, ``group`` a group: one of them.
    """

    operations: list[Operation]
    settings: Mapping[str, str]
    topic: TopicImage | None = None
    broker: str | None = None
    group: str | None = None

    @property
    def entity(self) -> tuple[str, str]:
        """Kind and name of the resource, as the store has them."""
        if self.topic is not None:
            return "topics", self.topic.name
        return ("groups", self.group) if self.group is not None else ("brokers", self.broker or "")


def replacement(settings: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """The settings of an AlterConfigs request, which are all that a resource then has."""
    replaced: dict[str, str] = {}
    for name, value in settings:
        if value is None:
            raise KafkaError(f"{name} has no value. To reset a key, leave it out.", ErrorCode.INVALID_REQUEST)
        if name in replaced:
            raise KafkaError(f"{name} comes twice", ErrorCode.INVALID_REQUEST)
        replaced[name] = value
    return replaced


def altered(
    current: Mapping[str, str], effective: Config, keys: Mapping[str, Key], alterations: Sequence[Alteration]
) -> tuple[dict[str, str], dict[str, str]]:
    """What ``alterations`` make of the settings ``current``: all of them, and those that were set anew.

    Append and subtract start from the value that holds (``effective``), be it set or inherited.
    """
    result = dict(current)
    touched: dict[str, str] = {}
    seen: set[str] = set()
    for name, operation, value in alterations:
        if name in seen:
            raise KafkaError(f"{name} comes twice", ErrorCode.INVALID_REQUEST)
        seen.add(name)
        if operation == AlterOperation.DELETE:
            result.pop(name, None)
            continue
        if operation not in (AlterOperation.SET, AlterOperation.APPEND, AlterOperation.SUBTRACT):
            raise KafkaError(f"{name}: there is no operation {operation}", ErrorCode.INVALID_REQUEST)
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
            f"{name} is no list: {operation.name} is for lists only, SET replaces a value",
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
    """Changes a topic's settings by ``alterations``; when they are None, replaces them by ``settings``."""
    if not name:
        raise KafkaError("settings of all topics are not possible: name one", ErrorCode.INVALID_REQUEST)
    check_name(name)
    topic = image.topics.get(name)
    if topic is None:
        raise missing_topic(image, name)
    if alterations is None:
        result = touched = replacement(settings)
    else:
        result, touched = altered(topic.config, config.topic_config(topic.config), TOPIC_KEYS, alterations)
    try:
        check_topic_settings(touched)
        if touched:
            check_settings_together(result)
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
    """Changes the run-time settings of one broker, or (``name`` empty) of all brokers.

    ``config`` is what holds at present on this broker.
    """
    entity = DEFAULT_ENTITY
    if name:
        # Another broker passes on what it was asked to change of itself.
        if name not in map(str, image.brokers):
            check_own_broker(name, broker_id)
        entity = str(int(name))
    current = image.broker_configs.get(entity, {})
    if alterations is None:
        result = touched = replacement(settings)
    else:
        result, touched = altered(current, config, BROKER_KEYS, alterations)
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
    """Changes the settings of a group, which need not exist.

    ``config`` is what holds on this broker; ``has_node``: the store has a node for the group's settings.
    """
    if not name:
        raise KafkaError("settings of all groups are not possible: name one", ErrorCode.INVALID_REQUEST)
    if len(name) > GROUP_NAME_CHARACTERS_MAX:
        raise KafkaError(
            f"the name of the group has {len(name)} characters: {GROUP_NAME_CHARACTERS_MAX} are allowed",
            ErrorCode.INVALID_REQUEST,
        )
    current = image.group_config(name)
    if alterations is None:
        result = touched = replacement(settings)
    else:
        result, touched = altered(current, GroupConfig(config, current), GROUP_KEYS, alterations)
    try:
        check_group_settings(touched, result, config)
    except ConfigError as error:
        raise KafkaError(str(error), ErrorCode.INVALID_CONFIG) from None
    if not has_node and len(image.group_configs) >= GROUPS_MAX:
        raise KafkaError(
            f"{GROUPS_MAX} groups have settings: reset those of groups that are gone",
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
    """``min.insync.replicas`` is one value for all brokers of a cluster, and always set.

    The controller keeps eligible leader replicas by it, each leader its high watermark. Deleted it becomes
    the default; a request that replaces all settings, and does not name it, leaves it. Source: KIP-966.
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
    """Raises INVALID_REQUEST unless ``name`` is this broker's id: clients ask each broker for its own."""
    if not (name.isascii() and name.isdigit() and len(name) <= BROKER_ID_DIGITS_MAX):
        raise KafkaError(f"{name!r} is no broker id", ErrorCode.INVALID_REQUEST)
    if int(name) != broker_id:
        raise KafkaError(
            f"this is broker {broker_id}, not {name}: ask that broker for its configuration",
            ErrorCode.INVALID_REQUEST,
        )
