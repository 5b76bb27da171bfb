"""DescribeConfigs: the settings of topics, brokers, groups and loggers, with the source of each value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker import broker_loggers
from tidemill.broker.api_declaration import declare_api
from tidemill.broker.handlers.common import external_text, shown_keys, shown_topic_keys
from tidemill.broker.request_context import RequestContext
from tidemill.controller.configuration_control import ResourceType, check_own_broker
from tidemill.controller.topic_name_validator import check_name
from tidemill.controller.topics import unknown_topic
from tidemill.model.configs import BROKER_KEYS, GROUP_KEYS, GroupConfig, Key, Synonym, TopicConfig
from tidemill.model.configs.all_keys import TOPIC_SYNONYMS
from tidemill.model.configs.config_def import READ_ONLY, STRING
from tidemill.model.configs.source_descriptions import with_provenance
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import describe_configs as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker

RESOURCES_MAX = 10_000
"""A few bytes of a request become kilobytes of its response: a larger number would exhaust memory."""

DYNAMIC_DEFAULT_BROKER, STATIC_BROKER, DEFAULT, DYNAMIC_LOGGER = 3, 4, 5, 6
"""Sources of values; the other sources come with the value."""


async def handle(
    broker: Broker, context: RequestContext, request: messages.DescribeConfigsRequest
) -> messages.DescribeConfigsResponse:
    """Returns one result per resource; a duplicate resource gets the keys of all its occurrences."""
    resources: dict[tuple[int, str], messages.DescribeConfigsResource] = {}
    async for resource in context.slices.over(request.resources):
        known = resources.setdefault((resource.resource_type, resource.resource_name), resource)
        if known is not resource:
            _join_keys(known, resource)
    results: list[messages.DescribeConfigsResult] = []
    async for resource in context.slices.over(resources.values()):
        if len(results) < RESOURCES_MAX:
            results.append(_result(broker, context, request, resource))
        else:
            results.append(_too_many(resource))
    return messages.DescribeConfigsResponse(results=results)


API: Final = declare_api(ApiKey.DESCRIBE_CONFIGS, 0, 4, lambda: messages.DescribeConfigsRequest, handle)


def _join_keys(known: messages.DescribeConfigsResource, again: messages.DescribeConfigsResource) -> None:
    if known.configuration_keys and again.configuration_keys:
        known.configuration_keys += again.configuration_keys
    else:
        known.configuration_keys = None


def _too_many(resource: messages.DescribeConfigsResource) -> messages.DescribeConfigsResult:
    return messages.DescribeConfigsResult(
        error_code=ErrorCode.INVALID_REQUEST,
        error_message=f"one request describes at most {RESOURCES_MAX} resources: ask in several requests",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _result(
    broker: Broker,
    context: RequestContext,
    request: messages.DescribeConfigsRequest,
    resource: messages.DescribeConfigsResource,
) -> messages.DescribeConfigsResult:
    result = messages.DescribeConfigsResult(
        error_code=ErrorCode.NONE,
        error_message=None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
    try:
        entries = _entries(broker, resource)
    except KafkaError as error:
        result.error_code = error.code
        result.error_message = external_text(error)
        return result
    requested = set(resource.configuration_keys or ())
    for entry in entries:
        if not requested or entry.name in requested:
            if context.api_version == 0:
                entry.is_default = entry.config_source == DEFAULT
            if not request.include_synonyms:
                entry.synonyms = []
            if not request.include_documentation:
                entry.documentation = None
            result.configs.append(entry)
    return result


def _entries(
    broker: Broker, resource: messages.DescribeConfigsResource
) -> list[messages.DescribeConfigsResourceResult]:
    kind, name = resource.resource_type, resource.resource_name
    if kind == ResourceType.TOPIC:
        return _of_topic(broker, name)
    if kind == ResourceType.BROKER:
        if not name:
            return _of_all_brokers(broker)
        check_own_broker(name, broker.node_id)
        config = broker.config
        return [
            _entry(
                key,
                config.rendered(key.name),
                config.synonyms(key.name),
                key.dynamic == READ_ONLY,
                config.provenance(key.name),
            )
            for key in shown_keys(BROKER_KEYS)
        ]
    if kind == ResourceType.BROKER_LOGGER:
        check_own_broker(name, broker.node_id)
        return [_logger_entry(logger, level) for logger, level in broker_loggers.levels().items()]
    if kind == ResourceType.GROUP:
        if not name:
            raise KafkaError("the group name is empty", ErrorCode.INVALID_REQUEST)
        return _of_group(broker, name)
    raise KafkaError(
        f"resources of type {kind} have no settings here. Name a topic, a broker, its loggers or a group.",
        ErrorCode.INVALID_REQUEST,
    )


def _of_topic(broker: Broker, name: str) -> list[messages.DescribeConfigsResourceResult]:
    check_name(name)
    topic = broker.metadata_cache.topic(name)
    if topic is None:
        raise unknown_topic(name)
    config = TopicConfig(broker.config, topic.config)
    return [
        _entry(
            key,
            config.rendered(key.name),
            config.synonyms(key.name),
            False,
            broker.config.provenance(TOPIC_SYNONYMS.get(key.name, "")),
        )
        for key in shown_topic_keys(config)
    ]


def _of_group(broker: Broker, name: str) -> list[messages.DescribeConfigsResourceResult]:
    config = GroupConfig(broker.config, broker.metadata_cache.image.group_config(name))
    return [
        _entry(key, config.rendered(key.name), config.synonyms(key.name), False)
        for key in GROUP_KEYS.values()
    ]


def _of_all_brokers(broker: Broker) -> list[messages.DescribeConfigsResourceResult]:
    """The dynamic cluster-wide defaults only: they are not the whole configuration of any broker."""
    entries = []
    for name, text in broker.metadata_cache.image.default_broker_config().items():
        key = BROKER_KEYS.get(name)
        if key is not None:
            value = None if key.sensitive else text
            entries.append(_entry(key, value, [Synonym(name, value, DYNAMIC_DEFAULT_BROKER)], False))
    return entries


def _entry(
    key: Key, value: str | None, synonyms: list[Synonym], read_only: bool, provenance: str = ""
) -> messages.DescribeConfigsResourceResult:
    """``provenance``: the origin of a value that was set at the broker's start."""
    source = synonyms[0].source if synonyms else DEFAULT
    documentation = f"{key.doc} ({key.effect})" if key.effect else key.doc
    if provenance and source == STATIC_BROKER:
        documentation = with_provenance(documentation, provenance)
    return messages.DescribeConfigsResourceResult(
        name=key.name,
        value=value,
        read_only=read_only,
        config_source=source,
        is_sensitive=key.sensitive,
        synonyms=[
            messages.DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in synonyms
        ],
        config_type=key.type,
        documentation=documentation,
    )


def _logger_entry(name: str, level: str) -> messages.DescribeConfigsResourceResult:
    return messages.DescribeConfigsResourceResult(
        name=name,
        value=level,
        read_only=False,
        config_source=DYNAMIC_LOGGER,
        is_sensitive=False,
        config_type=STRING,
        documentation="The level of this logger, until the broker stops.",
    )
