"""Metadata: brokers, controller, and the leaders of the topics that a client asks for.

Topics that are missing are made on the way when both sides want it; the answer then has their leaders, where
Apache Kafka sends its clients away to ask again.
"""

from __future__ import annotations

import inspect
from collections.abc import Coroutine, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from tidemill.broker.admin_log import note
from tidemill.broker.automatic_topics import make_topics
from tidemill.broker.context import RequestContext
from tidemill.broker.handlers.common import (
    CLUSTER_OPERATIONS,
    NO_LEADER,
    TOPIC_OPERATIONS,
    leader_error,
    missing_topic_error,
    offline_replicas,
    reachable,
    served_partitions,
)
from tidemill.broker.metadata import ClusterImage, PartitionImage, TopicImage
from tidemill.broker.request_slices import in_slices
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import ZERO_ID
from tidemill.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker

TOPIC_IDS_FROM = 12
"""Version 10 brought the fields; they mean something from 12 on."""

CREATIONS_MAX = 100
"""Topics made for one request; its client asks again for those that it does not find."""


def handle(
    broker: Broker, context: RequestContext, request: MetadataRequest
) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse]:
    """Answers at once, unless topics have to be made first, or there are many."""
    may_create = request.topics and request.allow_auto_topic_creation
    if may_create and broker.config.bool("auto.create.topics.enable"):
        return _create_and_answer(broker, context, request)
    if _may_be_held(broker):
        return _hold_and_answer(broker, context, request, {})
    work: MetadataResponse | Coroutine[Any, Any, MetadataResponse] = _answer(broker, context, request, {})
    return work


def wants_all(request: MetadataRequest, version: int) -> bool:
    """Whether the request is for all topics: null, or in version 0 an empty list."""
    return request.topics is None or (version == 0 and not request.topics)


async def _to_create(broker: Broker, context: RequestContext, request: MetadataRequest) -> list[str]:
    topics = broker.metadata.image.topics
    missing = []
    async for wanted in context.turns.over(request.topics or ()):
        if wanted.name is not None and wanted.topic_id == ZERO_ID:
            name = context.internal_name(wanted.name)
            if name not in topics and missing_topic_error(name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                missing.append(name)
    return list(dict.fromkeys(missing))[:CREATIONS_MAX]


async def _create_and_answer(
    broker: Broker, context: RequestContext, request: MetadataRequest
) -> MetadataResponse:
    errors: dict[str, ErrorCode] = {}
    missing = await _to_create(broker, context, request)
    if missing:
        errors = await context.turns.rest(_create(broker, context, missing))
    return await _hold_and_answer(broker, context, request, errors)


def _may_be_held(broker: Broker) -> bool:
    return broker.held_answers is not None and bool(broker.held_answers.doubted)


async def _hold_and_answer(
    broker: Broker, context: RequestContext, request: MetadataRequest, errors: dict[str, ErrorCode]
) -> MetadataResponse:
    """The answer, once it names no leader whose process may just have ended, or that has taken too long."""
    held = broker.held_answers
    while held is not None and held.doubted:
        edition = held.edition
        if not await _names_any(await held.led_topics(), context, request):
            break
        if not await held.hold(context, len(request.topics or ()), edition):
            break
    outcome = _answer(broker, context, request, errors)
    response: MetadataResponse = await outcome if inspect.isawaitable(outcome) else outcome
    return response


async def _names_any(
    topics: AbstractSet[bytes | str], context: RequestContext, request: MetadataRequest
) -> bool:
    """Whether the request is for any of ``topics``, by name or id."""
    if not topics or wants_all(request, context.api_version):
        return bool(topics)
    async for wanted in context.turns.over(request.topics or ()):
        if wanted.topic_id != ZERO_ID:
            if wanted.topic_id in topics:
                return True
        elif wanted.name is not None and context.internal_name(wanted.name) in topics:
            return True
    return False


async def _create(broker: Broker, context: RequestContext, missing: Sequence[str]) -> dict[str, ErrorCode]:
    try:
        made = await make_topics(broker, missing)
    except KafkaError as error:
        return dict.fromkeys(missing, error.code)
    note(context, "topics created as a client asked for their metadata", made.created)
    return {name: problem.code for name, problem in made.errors.items()}


@in_slices
async def _answer(
    broker: Broker, context: RequestContext, request: MetadataRequest, errors: dict[str, ErrorCode]
) -> MetadataResponse:
    image: ClusterImage = broker.metadata.image
    version = context.api_version
    operations = TOPIC_OPERATIONS if request.include_topic_authorized_operations else -(2**31)
    topics = []
    if wants_all(request, version):
        async for topic in context.turns.over(list(image.topics.values())):
            topics.append(await _topic(broker, image, context, topic, operations))
    else:
        asked = {}
        async for wanted in context.turns.over(request.topics or ()):
            asked[wanted.topic_id, wanted.name] = wanted
        async for wanted in context.turns.over(asked.values()):
            topics.append(await _wanted(broker, image, context, wanted, operations, errors))
        await context.turns.let_go(asked)
    brokers = dict(sorted({**broker.metadata.departed, **image.brokers}.items()))
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=found.broker_id, host=host, port=port, rack=found.rack)
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
    wanted: MetadataRequestTopic,
    operations: int,
    errors: dict[str, ErrorCode],
) -> MetadataResponseTopic:
    by_id = wanted.topic_id != ZERO_ID
    if context.api_version < TOPIC_IDS_FROM and (by_id or wanted.name is None):
        return MetadataResponseTopic(
            error_code=ErrorCode.INVALID_REQUEST, name=wanted.name or "", topic_id=wanted.topic_id
        )
    if by_id:
        topic = image.topics_by_id.get(wanted.topic_id)
        if topic is None:
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=wanted.topic_id
            )
        return await _topic(broker, image, context, topic, operations)
    if wanted.name is None:
        return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=ZERO_ID)
    name = context.internal_name(wanted.name)
    topic = image.topics.get(name)
    if topic is None or name in errors:
        code = errors.get(name) or missing_topic_error(name)
        return MetadataResponseTopic(error_code=code, name=wanted.name, is_internal=False)
    return await _topic(broker, image, context, topic, operations)


async def _topic(
    broker: Broker, image: ClusterImage, context: RequestContext, topic: TopicImage, operations: int
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=context.external_name(topic.name),
        topic_id=topic.topic_id,
        is_internal=topic.internal,
        partitions=await _partitions(image, context, served_partitions(broker, topic)),
        topic_authorized_operations=operations,
    )


async def _partitions(
    image: ClusterImage, context: RequestContext, partitions: Sequence[PartitionImage]
) -> list[MetadataResponsePartition]:
    version = context.api_version
    listener = context.listener.name
    brokers = image.brokers
    answered = []
    async for partition in context.turns.over(partitions):
        error = leader_error(image, partition, listener)
        if error == ErrorCode.LISTENER_NOT_FOUND and version < 6:
            error = ErrorCode.LEADER_NOT_AVAILABLE
        replicas, isr = partition.replicas, partition.isr
        if version == 0:  # The oldest clients look every replica up among the brokers of the answer.
            replicas = [broker for broker in replicas if broker in brokers]
            isr = [broker for broker in isr if broker in brokers]
            if error == ErrorCode.NONE and len(replicas) < len(partition.replicas):
                error = ErrorCode.REPLICA_NOT_AVAILABLE
        answered.append(
            MetadataResponsePartition(
                error_code=error,
                partition_index=partition.partition,
                leader_id=partition.leader if error in _HAS_LEADER else NO_LEADER,
                leader_epoch=partition.leader_epoch,
                replica_nodes=replicas,
                isr_nodes=isr,
                offline_replicas=offline_replicas(image, partition),
            )
        )
    return answered


_HAS_LEADER = frozenset({ErrorCode.NONE, ErrorCode.REPLICA_NOT_AVAILABLE})
