"""Runs the controller's interruptible work in one go, as tests want it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import ParamSpec, TypeVar

from tidemill.broker.controller_request_batch import (
    ControllerRequest,
    ControllerRequestBatch,
    request_builders,
)
from tidemill.controller.controlled_shutdown_leader_election import plan_shutdown_in_slices
from tidemill.controller.leader_election import plan_broker_change_in_slices, plan_reported_replicas_in_slices
from tidemill.controller.replica_placement import place_replicas_in_slices
from tidemill.controller.topics import plan_creation_in_slices, plan_growth_in_slices
from tidemill.coordination.cluster_image import BrokerImage
from tidemill.model.event_loop_slices import run_at_once
from tidemill.wire.apis import ApiKey

P = ParamSpec("P")
Result = TypeVar("Result")


def unpaused(work: Callable[P, Generator[None, None, Result]]) -> Callable[P, Result]:
    """Returns a function that does the work without pauses."""

    def run(*args: P.args, **kwargs: P.kwargs) -> Result:
        return run_at_once(work(*args, **kwargs))

    return run


plan_broker_change = unpaused(plan_broker_change_in_slices)
plan_creation = unpaused(plan_creation_in_slices)
plan_growth = unpaused(plan_growth_in_slices)
plan_reported_replicas = unpaused(plan_reported_replicas_in_slices)
place_replicas = unpaused(place_replicas_in_slices)
plan_shutdown = unpaused(plan_shutdown_in_slices)


def requests_in(
    batch: ControllerRequestBatch, to: BrokerImage, listener: str
) -> Iterator[tuple[ApiKey, ControllerRequest]]:
    """Returns the messages of :func:`request_builders`."""
    for key, work in request_builders(batch, to, listener):
        yield key, run_at_once(work)
