"""Metadata: brokers, controller, and the leaders of the topics that a client requests.

Missing topics are created when both sides allow it; the response then contains their leaders, where Apache
Kafka makes its clients retry.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from tidemill.broker.admin_log import log_change
from tidemill.broker.api_declaration import declare_api, response_of
from tidemill.broker.auto_topic_creation import create_missing_topics
from tidemill.broker.eager_start import eager_start
from tidemill.broker.handlers.common import (
    CLUSTER_OPERATIONS,
    TOPIC_OPERATIONS,
    leader_error,
    missing_topic_error,
    offline_replicas,
    reachable,
    served_partitions,
)
from tidemill.broker.metadata_cache import ClusterImage, PartitionImage, TopicImage
from tidemill.broker.request_context import RequestContext
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import NO_BROKER, ZERO_ID
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import metadata as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker

TOPIC_IDS_FROM = 12
"""Version 10 added the fields; they are used from version 12 on."""

CREATIONS_MAX = 100
"""Topics created per request; the client retries for the topics that it does not find."""


def handle(
    broker: Broker, context: RequestContext, request: messages.MetadataRequest
) -> messages.MetadataResponse | Coroutine[object, object, messages.MetadataResponse]:
    """Responds at once, unless topics have to be created first, or there are many."""
    may_create = request.topics and request.allow_auto_topic_creation
    if may_create and broker.config.bool("auto.create.topics.enable"):
        return _create_and_respond(broker, context, request)
    if broker.cluster is not None and broker.cluster.delayed_metadata.suspected:
        return _delay_and_respond(broker, context, request, {})
    return _respond(broker, context, request, {})


API: Final = declare_api(ApiKey.METADATA, 0, 13, lambda: messages.MetadataRequest, handle)


def wants_all(request: messages.MetadataRequest, version: int) -> bool:
    """Whether the request is for all topics: null, or an empty list in version 0."""
    return request.topics is None or (version == 0 and not request.topics)


async def _missing_topics(
    broker: Broker, context: RequestContext, request: messages.MetadataRequest
) -> list[str]:
    topics = broker.metadata_cache.image.topics
    missing = []
    async for wanted in context.slices.over(request.topics or ()):
        if wanted.name is not None and wanted.topic_id == ZERO_ID:
            name = wanted.name
            if name not in topics and missing_topic_error(name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                missing.append(name)
    return list(dict.fromkeys(missing))[:CREATIONS_MAX]


async def _create_and_respond(
    broker: Broker, context: RequestContext, request: messages.MetadataRequest
) -> messages.MetadataResponse:
    errors: dict[str, ErrorCode] = {}
    missing = await _missing_topics(broker, context, request)
    if missing:
        errors = await context.slices.wait_for(_create(broker, context, missing))
    return await _delay_and_respond(broker, context, request, errors)


async def _delay_and_respond(
    broker: Broker, context: RequestContext, request: messages.MetadataRequest, errors: dict[str, ErrorCode]
) -> messages.MetadataResponse:
    """Responds once no leader in the response may have just ended, or when that takes too long."""
    delayed_metadata = broker.cluster.delayed_metadata if broker.cluster is not None else None
    while delayed_metadata is not None and delayed_metadata.suspected:
        change_count = delayed_metadata.change_count
        if not await _requests_any(await delayed_metadata.topics_led_by_suspected(), context, request):
            break
        if not await delayed_metadata.wait_for_change(context, len(request.topics or ()), change_count):
            break
    return await response_of(_respond(broker, context, request, errors))


async def _requests_any(
    topics: AbstractSet[bytes | str], context: RequestContext, request: messages.MetadataRequest
) -> bool:
    """Whether the request is for any of ``topics``, by name or id."""
    if not topics or wants_all(request, context.api_version):
        return bool(topics)
    async for wanted in context.slices.over(request.topics or ()):
        if wanted.topic_id != ZERO_ID:
            if wanted.topic_id in topics:
                return True
        elif wanted.name is not None and wanted.name in topics:
            return True
    return False


async def _create(broker: Broker, context: RequestContext, missing: Sequence[str]) -> dict[str, ErrorCode]:
    try:
        made = await create_missing_topics(broker, missing)
    except KafkaError as error:
        return dict.fromkeys(missing, error.code)
    log_change(context, "topics created because a client requested their metadata", made.created)
    return {name: problem.code for name, problem in made.errors.items()}


@eager_start
async def _respond(
    broker: Broker, context: RequestContext, request: messages.MetadataRequest, errors: dict[str, ErrorCode]
) -> messages.MetadataResponse:
    image: ClusterImage = broker.metadata_cache.image
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else -(2**31)
    topics = []
    if wants_all(request, context.api_version):
        async for topic in context.slices.over(list(image.topics.values())):
            topics.append(await _topic(broker, image, context, topic, operations))
    else:
        requested = {}
        async for wanted in context.slices.over(request.topics or ()):
            requested[wanted.topic_id, wanted.name] = wanted
        async for wanted in context.slices.over(requested.values()):
            topics.append(await _wanted(broker, image, context, wanted, operations, errors))
        await context.slices.clear(requested)
    brokers = dict(sorted({**broker.metadata_cache.departed, **image.brokers}.items()))
    return messages.MetadataResponse(
        brokers=[
            messages.MetadataResponseBroker(node_id=found.broker_id, host=host, port=port, rack=found.rack)
            for found, host, port in reachable(brokers.values(), context)
        ],
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=topics,
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else -(2**31)
        ),
    )


async def _wanted(
    broker: Broker,
    image: ClusterImage,
    context: RequestContext,
    wanted: messages.MetadataRequestTopic,
    operations: int,
    errors: dict[str, ErrorCode],
) -> messages.MetadataResponseTopic:
    by_id = wanted.topic_id != ZERO_ID
    if context.api_version < TOPIC_IDS_FROM and (by_id or wanted.name is None):
        return messages.MetadataResponseTopic(
            error_code=ErrorCode.INVALID_REQUEST, name=wanted.name or "", topic_id=wanted.topic_id
        )
    if by_id:
        topic = image.topics_by_id.get(wanted.topic_id)
        if topic is None:
            return messages.MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=wanted.topic_id
            )
        return await _topic(broker, image, context, topic, operations)
    if wanted.name is None:
        return messages.MetadataResponseTopic(
            error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=ZERO_ID
        )
    topic = image.topics.get(wanted.name)
    if topic is None or wanted.name in errors:
        code = errors.get(wanted.name) or missing_topic_error(wanted.name)
        return messages.MetadataResponseTopic(error_code=code, name=wanted.name, is_internal=False)
    return await _topic(broker, image, context, topic, operations)


async def _topic(
    broker: Broker, image: ClusterImage, context: RequestContext, topic: TopicImage, operations: int
) -> messages.MetadataResponseTopic:
    return messages.MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=await _partitions(image, context, served_partitions(broker, topic)),
        topic_authorized_operations=operations,
    )


async def _partitions(
    image: ClusterImage, context: RequestContext, partitions: Sequence[PartitionImage]
) -> list[messages.MetadataResponsePartition]:
    version = context.api_version
    listener = context.listener.name
    brokers = image.brokers
    results = []
    async for partition in context.slices.over(partitions):
        error = leader_error(image, partition, listener)
        if error == ErrorCode.LISTENER_NOT_FOUND and version < 6:
            error = ErrorCode.LEADER_NOT_AVAILABLE
        replicas, isr = partition.replicas, partition.isr
        if version == 0:  # The oldest clients look up every replica among the brokers of the response.
            replicas = [broker for broker in replicas if broker in brokers]
            isr = [broker for broker in isr if broker in brokers]
            if error == ErrorCode.NONE and len(replicas) < len(partition.replicas):
                error = ErrorCode.REPLICA_NOT_AVAILABLE
        results.append(
            messages.MetadataResponsePartition(
                error_code=error,
                partition_index=partition.partition,
                leader_id=partition.leader if error in _HAS_LEADER else NO_BROKER,
                leader_epoch=partition.leader_epoch,
                replica_nodes=replicas,
                isr_nodes=isr,
                offline_replicas=offline_replicas(image, partition),
            )
        )
    return results


_HAS_LEADER = frozenset({ErrorCode.NONE, ErrorCode.REPLICA_NOT_AVAILABLE})
