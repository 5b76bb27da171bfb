"""What the handlers of cluster and topic APIs share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tidemill.broker.context import RequestContext
from tidemill.broker.metadata import BrokerImage, ClusterImage, PartitionImage, TopicImage
from tidemill.controller.configs import ResourceType
from tidemill.coordination.port import StoreError
from tidemill.model.configs import TOPIC_KEYS, Key, TopicConfig
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.log_lines import cut_short
from tidemill.model.topic_names import name_problem
from tidemill.model.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker

log = logging.getLogger("tidemill.broker")

Result = TypeVar("Result")

NO_LEADER = -1

SETTINGS_MAX = 1000
"""Of one resource in one request: there are some hundred keys, and each may be named once."""

TEXT_CHARACTERS_MAX = 1000
"""Of an error's text: a string of the protocol holds 32,767 bytes, and a request many names."""

# Operations of access lists, as bits of "authorized operations" (bit n for operation code n, KIP-430).
_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = (1 << code for code in (3, 4, 5, 6, 7, 8))
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = (
    1 << code for code in (9, 10, 11, 12)
)

TOPIC_OPERATIONS = (
    _READ | _WRITE | _CREATE | _DELETE | _ALTER | _DESCRIBE | _DESCRIBE_CONFIGS | _ALTER_CONFIGS
)
"""All that can be done with a topic: without access lists everybody may."""

CLUSTER_OPERATIONS = (
    _CREATE | _CLUSTER_ACTION | _DESCRIBE_CONFIGS | _ALTER_CONFIGS | _IDEMPOTENT_WRITE | _ALTER | _DESCRIBE
)
"""All that can be done with the cluster."""


def reachable(brokers: Iterable[BrokerImage], context: RequestContext) -> list[tuple[BrokerImage, str, int]]:
    """Brokers with host and port of the listener by which the client came; those that have it."""
    name = context.listener.name
    found = []
    for broker in brokers:
        endpoint = broker.endpoints.get(name)
        if endpoint is not None:
            found.append((broker, context.host_of(broker.broker_id, endpoint.host), endpoint.port))
    return found


def offline_replicas(image: ClusterImage, partition: PartitionImage) -> list[int]:
    """The replicas whose brokers do not live, or cannot read or write them."""
    brokers, offline = image.brokers, partition.offline
    return [broker for broker in partition.replicas if broker not in brokers or broker in offline]


def served_partitions(broker: Broker, topic: TopicImage) -> Sequence[PartitionImage]:
    """The partitions of a topic; those whose log failed here are offline here, and not led from here.

    So Apache Kafka's controller has it, in the end. Nobody has to wait for that, and a broker that is alone
    has no other to lead what it cannot.
    """
    entry = broker.partitions.topics.by_name.get(topic.name.encode())
    if entry is None or entry.topic_id != topic.topic_id:
        return topic.partitions
    failed = {int(one.index) for one in entry.partitions if one is not None and one.failed}
    if not failed:
        return topic.partitions
    return [_not_here(one, broker.node_id) if one.partition in failed else one for one in topic.partitions]


def _not_here(partition: PartitionImage, node_id: int) -> PartitionImage:
    return PartitionImage(
        partition.partition,
        NO_LEADER if partition.leader == node_id else partition.leader,
        partition.leader_epoch,
        partition.replicas,
        partition.isr,
        partition.partition_epoch,
        partition.adding,
        partition.removing,
        partition.offline | {node_id},
    )


def leader_error(image: ClusterImage, partition: PartitionImage, listener: str) -> ErrorCode:
    """Why a client of that listener cannot reach the partition's leader, or NONE."""
    leader = image.brokers.get(partition.leader)
    if leader is None:
        return ErrorCode.LEADER_NOT_AVAILABLE
    if listener not in leader.endpoints:
        return ErrorCode.LISTENER_NOT_FOUND
    return ErrorCode.NONE


def missing_topic_error(name: str) -> ErrorCode:
    """The error for a topic that is not there, and is not made."""
    return ErrorCode.INVALID_TOPIC_EXCEPTION if name_problem(name) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def internal_resource(context: RequestContext, resource_type: int, name: str) -> str:
    """The name inside the broker of a resource that has settings."""
    return context.internal_name(name) if resource_type == ResourceType.TOPIC else name


def shown_keys(keys: Mapping[str, Key]) -> list[Key]:
    """The keys that clients see: those of Kafka's own tests (``internal.*``) are left out."""
    return [key for name, key in keys.items() if not name.startswith("internal.")]


def shown_topic_keys(config: TopicConfig) -> list[Key]:
    """The keys of a topic that clients see: those that have a value.

    Programs write back what they have read, and a null value is refused. A former name, which has a value
    only where somebody set it, is left out where nobody did; Kafka 4 does not know it.
    """
    return [key for key in shown_keys(TOPIC_KEYS) if config.get(key.name) is not None]


def check_setting_count(count: int) -> None:
    """Raises INVALID_REQUEST when a request names more settings of one resource than there can be."""
    if count > SETTINGS_MAX:
        raise KafkaError(
            f"{count} settings of one resource are too many: a request names at most {SETTINGS_MAX}. "
            "Name each key once.",
            ErrorCode.INVALID_REQUEST,
        )


def external_text(error: KafkaError) -> str:
    """What the client reads of an error."""
    return shortened(str(error))


def store_error(error: StoreError) -> KafkaError:
    """What a client is told when the coordination store did not take a change."""
    code = error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
    return KafkaError(f"{error}. Try again.", code)


def by_topic(results: Mapping[TopicPartition, Result]) -> dict[str, dict[int, Result]]:
    """Results by topic and number, as responses have them."""
    grouped: dict[str, dict[int, Result]] = {}
    for (topic, number), result in results.items():
        grouped.setdefault(topic, {})[number] = result
    return grouped


def shortened(text: str) -> str:
    """A text that fits into a response, however long the names are that the client put into it."""
    return cut_short(text, TEXT_CHARACTERS_MAX)


async def within(timeout_ms: int, work: Coroutine[Any, Any, Result]) -> Result:
    """What ``work`` returns; REQUEST_TIMED_OUT after ``timeout_ms``, while it goes on and takes effect."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=max(timeout_ms, 0) / 1000)
    finally:
        if not task.done():
            _going_on.add(task)
            task.add_done_callback(_ended)
    if not task.done():
        raise KafkaError(
            f"not done within {timeout_ms} ms; it goes on, look again later", ErrorCode.REQUEST_TIMED_OUT
        )
    return task.result()


_going_on: set[asyncio.Future[Any]] = set()
"""Work that outlived its request. The loop itself would let go of it half way: it holds tasks weakly."""


def going_on() -> list[asyncio.Future[Any]]:
    """What outlived its request in this loop, and has not ended yet."""
    loop = asyncio.get_running_loop()
    return [task for task in _going_on if task.get_loop() is loop]


def _ended(task: asyncio.Future[Any]) -> None:
    _going_on.discard(task)
    problem = None if task.cancelled() else task.exception()
    if isinstance(problem, KafkaError):
        log.info("a change that outlived its request failed: %s", problem)
    elif problem is not None:
        log.error("a change that outlived its request broke", exc_info=problem)
