"""ElectLeaders: preferred replicas lead again, or whoever lives leads what nobody does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.admin_log import note_each
from tidemill.broker.context import RequestContext
from tidemill.broker.handlers.common import external_text, store_error, within
from tidemill.controller.preferred import ElectionType
from tidemill.coordination.port import StoreError
from tidemill.model.errors import KafkaError
from tidemill.model.types import TopicPartition
from tidemill.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


ERROR_CODE_FROM = 1
"""Before, the partitions' results are the only place to say what is wrong with all of it."""


async def handle(
    broker: Broker, context: RequestContext, request: ElectLeadersRequest
) -> ElectLeadersResponse:
    """One result a partition; when all were asked for, those only where an election was needed."""
    turns = context.turns
    wanted: dict[TopicPartition, None] | None = None
    if request.topic_partitions is not None:
        wanted = {}
        async for topic in turns.over(request.topic_partitions):
            name = context.internal_name(topic.topic)
            async for number in turns.over(topic.partitions):
                wanted[TopicPartition(name, number)] = None
    results: dict[TopicPartition, KafkaError | None]
    failure: KafkaError | None = None
    try:
        work = _elect(broker, context, wanted, request.election_type)
        results = await turns.rest(within(request.timeout_ms, work))
    except KafkaError as error:
        failure = error
    except StoreError as error:
        failure = store_error(error)
    if failure is not None:
        results = dict.fromkeys(wanted or (), failure)
    response = ElectLeadersResponse(
        error_code=failure.code if failure is not None and context.api_version >= ERROR_CODE_FROM else 0,
        replica_election_results=[],
    )
    of_topic: dict[str, list[PartitionResult]] = {}
    async for (name, number), problem in turns.over(results.items()):
        of_topic.setdefault(name, []).append(_result(number, problem))
    async for name, found in turns.over(of_topic.items()):
        response.replica_election_results.append(
            ReplicaElectionResult(topic=context.external_name(name), partition_result=found)
        )
    await turns.let_go(of_topic)
    await turns.let_go(results)
    await turns.let_go(wanted or {})
    return response


async def _elect(
    broker: Broker, context: RequestContext, wanted: dict[TopicPartition, None] | None, election_type: int
) -> dict[TopicPartition, KafkaError | None]:
    results = await broker.controller.leading.elect(wanted, election_type)
    kind = "unclean" if election_type == ElectionType.UNCLEAN else "preferred"
    elected = [partition for partition, error in results.items() if error is None]
    await note_each(context, f"{kind} elections done", elected, str)
    return results


def _result(number: int, error: KafkaError | None) -> PartitionResult:
    if error is None:
        return PartitionResult(partition_id=number, error_code=0, error_message=None)
    return PartitionResult(partition_id=number, error_code=error.code, error_message=external_text(error))
