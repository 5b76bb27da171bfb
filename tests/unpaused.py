"""Runs the controller's interruptible work in one go, as tests want it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import ParamSpec, TypeVar

from tidemill.broker.controller_request_batch import (
    ControllerRequest,
    ControllerRequestBatch,
    request_builders,
)
from tidemill.controller.controlled_shutdown import planning_shutdown
from tidemill.controller.leader_election import planning_broker_change, planning_failed_replicas
from tidemill.controller.topics import planning_creation, planning_growth
from tidemill.coordination.cluster_image import BrokerImage
from tidemill.model.event_loop_slices import in_one_go
from tidemill.wire.apis import ApiKey

P = ParamSpec("P")
Result = TypeVar("Result")


def unpaused(work: Callable[P, Generator[None, None, Result]]) -> Callable[P, Result]:
    """Returns a function that does the work without pauses."""

    def run(*args: P.args, **kwargs: P.kwargs) -> Result:
        return in_one_go(work(*args, **kwargs))

    return run


plan_broker_change = unpaused(planning_broker_change)
plan_creation = unpaused(planning_creation)
plan_failed_replicas = unpaused(planning_failed_replicas)
plan_growth = unpaused(planning_growth)
plan_shutdown = unpaused(planning_shutdown)


def requests_in(
    batch: ControllerRequestBatch, to: BrokerImage, listener: str
) -> Iterator[tuple[ApiKey, ControllerRequest]]:
    """Returns the messages of :func:`request_builders`."""
    for key, work in request_builders(batch, to, listener):
        yield key, in_one_go(work)
