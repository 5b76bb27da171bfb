"""ElectLeaders: elects preferred replicas, or any live replica for a partition without a leader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidemill.broker.admin_log import log_changes
from tidemill.broker.api_declaration import declare_api
from tidemill.broker.handlers.common import external_text, run_within_timeout
from tidemill.broker.request_context import RequestContext
from tidemill.controller.preferred_leader_election import ElectionType
from tidemill.coordination.coordination_store import StoreError
from tidemill.coordination.store_error_codes import wire_error
from tidemill.model.errors import KafkaError
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import elect_leaders as messages

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker


ERROR_CODE_FROM = 1
"""Earlier versions report errors of the whole request only in the partitions' results."""


async def handle(
    broker: Broker, context: RequestContext, request: messages.ElectLeadersRequest
) -> messages.ElectLeadersResponse:
    """Returns one result per partition; of all partitions, only where an election was needed."""
    slices = context.slices
    wanted: dict[TopicPartition, None] | None = None
    if request.topic_partitions is not None:
        wanted = {}
        async for topic in slices.over(request.topic_partitions):
            name = topic.topic
            async for number in slices.over(topic.partitions):
                wanted[TopicPartition(name, number)] = None
    results: dict[TopicPartition, KafkaError | None]
    failure: KafkaError | None = None
    try:
        work = _elect(broker, context, wanted, request.election_type)
        results = await slices.wait_for(run_within_timeout(request.timeout_ms, work))
    except (KafkaError, StoreError) as problem:
        failure = wire_error(problem)
    if failure is not None:
        results = dict.fromkeys(wanted or (), failure)
    response = messages.ElectLeadersResponse(
        error_code=failure.code if failure is not None and context.api_version >= ERROR_CODE_FROM else 0,
        replica_election_results=[],
    )
    of_topic: dict[str, list[messages.PartitionResult]] = {}
    async for (name, number), error in slices.over(results.items()):
        of_topic.setdefault(name, []).append(_result(number, error))
    async for name, found in slices.over(of_topic.items()):
        response.replica_election_results.append(
            messages.ReplicaElectionResult(topic=name, partition_result=found)
        )
    await slices.clear(of_topic)
    await slices.clear(results)
    await slices.clear(wanted or {})
    return response


API: Final = declare_api(
    ApiKey.ELECT_LEADERS, 0, 2, lambda: messages.ElectLeadersRequest, handle, to_controller=True
)


async def _elect(
    broker: Broker, context: RequestContext, wanted: dict[TopicPartition, None] | None, election_type: int
) -> dict[TopicPartition, KafkaError | None]:
    results = await broker.controller.leader_elections.elect(wanted, election_type)
    kind = "unclean" if election_type == ElectionType.UNCLEAN else "preferred"
    elected = [partition for partition, error in results.items() if error is None]
    await log_changes(context, f"{kind} elections done", elected, str)
    return results


def _result(number: int, error: KafkaError | None) -> messages.PartitionResult:
    if error is None:
        return messages.PartitionResult(partition_id=number, error_code=0, error_message=None)
    return messages.PartitionResult(
        partition_id=number, error_code=error.code, error_message=external_text(error)
    )
