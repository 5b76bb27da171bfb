"""Functions that the handlers of several APIs share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from tidemill.broker.metadata_cache import BrokerImage, ClusterImage, PartitionImage, TopicImage
from tidemill.broker.request_context import RequestContext
from tidemill.model.configs import TOPIC_KEYS, Key, TopicConfig
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.log_lines import cut_short
from tidemill.model.task_set import TaskSet
from tidemill.model.topic_names import name_problem
from tidemill.model.types import NO_BROKER

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker

logger = logging.getLogger("tidemill.broker")

Result = TypeVar("Result")

SETTINGS_MAX = 1000
"""Settings per resource in one request: there are some hundred keys, and each may occur once."""

TEXT_CHARACTERS_MAX = 1000
"""Length of an error message: a string of the protocol holds 32,767 bytes, and a request many names."""

# Operations of access lists, as bits of "authorized operations" (bit n for operation code n, KIP-430).
_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = (1 << code for code in (3, 4, 5, 6, 7, 8))
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = (
    1 << code for code in (9, 10, 11, 12)
)

TOPIC_OPERATIONS = (
    _READ | _WRITE | _CREATE | _DELETE | _ALTER | _DESCRIBE | _DESCRIBE_CONFIGS | _ALTER_CONFIGS
)
"""All topic operations: without ACLs, every client may perform them."""

CLUSTER_OPERATIONS = (
    _CREATE | _CLUSTER_ACTION | _DESCRIBE_CONFIGS | _ALTER_CONFIGS | _IDEMPOTENT_WRITE | _ALTER | _DESCRIBE
)
"""All cluster operations."""


def reachable(brokers: Iterable[BrokerImage], context: RequestContext) -> list[tuple[BrokerImage, str, int]]:
    """Returns the brokers on the client's listener, each with its host and port on that listener."""
    name = context.listener.name
    found = []
    for broker in brokers:
        endpoint = broker.endpoints.get(name)
        if endpoint is not None:
            found.append((broker, context.advertised_host(broker.broker_id, endpoint.host), endpoint.port))
    return found


def offline_replicas(image: ClusterImage, partition: PartitionImage) -> list[int]:
    """Returns the replicas whose brokers are not alive, or cannot read or write them."""
    brokers, offline = image.brokers, partition.offline
    return [broker for broker in partition.replicas if broker not in brokers or broker in offline]


def served_partitions(broker: Broker, topic: TopicImage) -> Sequence[PartitionImage]:
    """Returns the partitions of a topic, with those whose log failed here as offline and not led here.

    Apache Kafka's controller eventually does the same. This avoids waiting for the controller, and works for
    a single broker, where no other broker can lead the partition.
    """
    entry = broker.replica_manager.topics.by_name.get(topic.name.encode())
    if entry is None or entry.topic_id != topic.topic_id:
        return topic.partitions
    failed = {
        int(partition.index)
        for partition in entry.partitions
        if partition is not None and partition.is_offline
    }
    if not failed:
        return topic.partitions
    return [
        _without_local_replica(partition, broker.node_id) if partition.partition in failed else partition
        for partition in topic.partitions
    ]


def _without_local_replica(partition: PartitionImage, node_id: int) -> PartitionImage:
    return PartitionImage(
        partition.partition,
        NO_BROKER if partition.leader == node_id else partition.leader,
        partition.leader_epoch,
        partition.replicas,
        partition.isr,
        partition.partition_epoch,
        partition.adding,
        partition.removing,
        partition.offline | {node_id},
    )


def leader_error(image: ClusterImage, partition: PartitionImage, listener: str) -> ErrorCode:
    """Returns the reason that a client of that listener cannot reach the partition's leader, or NONE."""
    leader = image.brokers.get(partition.leader)
    if leader is None:
        return ErrorCode.LEADER_NOT_AVAILABLE
    if listener not in leader.endpoints:
        return ErrorCode.LISTENER_NOT_FOUND
    return ErrorCode.NONE


def missing_topic_error(name: str) -> ErrorCode:
    """Returns the error for a missing topic that is not created."""
    return ErrorCode.INVALID_TOPIC_EXCEPTION if name_problem(name) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def shown_keys(keys: Mapping[str, Key]) -> list[Key]:
    """Returns the keys that clients see: all but those of Kafka's own tests (``internal.*``)."""
    return [key for name, key in keys.items() if not name.startswith("internal.")]


def shown_topic_keys(config: TopicConfig) -> list[Key]:
    """Returns the topic keys that clients see: those with a value.

    Programs write back the values that they read, and a null value is refused. A deprecated name, which has a
    value only where it was set explicitly, is omitted otherwise; Kafka 4 does not know it.
    """
    return [key for key in shown_keys(TOPIC_KEYS) if config.get(key.name) is not None]


def check_setting_count(count: int) -> None:
    """Raises INVALID_REQUEST when a request has more settings of one resource than exist."""
    if count > SETTINGS_MAX:
        raise KafkaError(
            f"{count} settings of one resource are too many: a request names at most {SETTINGS_MAX}. "
            "Name each key once.",
            ErrorCode.INVALID_REQUEST,
        )


def external_text(error: KafkaError) -> str:
    """Returns the error message for the client."""
    return shortened(str(error))


def shortened(text: str) -> str:
    """Shortens a text to fit into a response, however long the names in it are."""
    return cut_short(text, TEXT_CHARACTERS_MAX)


async def run_within_timeout(timeout_ms: int, work: Coroutine[object, object, Result]) -> Result:
    """Returns the result of ``work``; raises REQUEST_TIMED_OUT after ``timeout_ms``, while it continues."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait((task,), timeout=max(timeout_ms, 0) / 1000)
    finally:
        if not task.done():
            _unfinished_work.track(task)
    if not task.done():
        raise KafkaError(
            f"not done within {timeout_ms} ms; it continues, check again later", ErrorCode.REQUEST_TIMED_OUT
        )
    return task.result()


def unfinished_work() -> list[asyncio.Task[object]]:
    """Returns the work in this event loop that outlived its request and has not ended."""
    loop = asyncio.get_running_loop()
    return [task for task in _unfinished_work if task.get_loop() is loop]


def log_failure(problem: BaseException) -> None:
    """Logs the failure of work that outlived its request."""
    if isinstance(problem, KafkaError):
        logger.info("a change that outlived its request failed: %s", problem)
    else:
        logger.error("a change that outlived its request failed unexpectedly", exc_info=problem)


_unfinished_work = TaskSet(on_failure=log_failure)
"""Work that outlived its request."""


def fenced_error(error: ErrorCode, knows_producer_fenced: bool) -> ErrorCode:
    """Returns the error of a fenced producer in the form that its client knows.

    Earlier versions of the APIs of transactions have INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED.
    """
    if error is ErrorCode.PRODUCER_FENCED and not knows_producer_fenced:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
