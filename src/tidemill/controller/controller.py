"""The controller of the cluster and its parts.

Every broker has a controller; one of them is active, by its :class:`ControllerElection`. The parts share the
:class:`ControllerContext`, which holds the image of the cluster and writes to the store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from tidemill.controller.admin_manager import AdminManager
from tidemill.controller.alter_partition import AlterPartitionItem, alter_partitions
from tidemill.controller.controller_context import Announce, ControllerContext, ControllerParts
from tidemill.controller.controller_election import ControllerElection
from tidemill.controller.failover import Failover
from tidemill.controller.leader_election_requests import LeaderElectionRequests
from tidemill.controller.reassignment_requests import ReassignmentRequests
from tidemill.controller.unclean_recovery import RequestLogEnds, UncleanRecovery
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.coordination_store import Store
from tidemill.coordination.topic_image import PartitionImage
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import KafkaError
from tidemill.model.system_interfaces import Clock


class KafkaController(ControllerParts):
    """The controller of this broker, active or not."""

    def __init__(
        self,
        store: Store,
        broker_id: int,
        config: Callable[[], BrokerConfig],
        announce: Announce,
        clock: Clock,
        random: Random | None = None,
        *,
        known_image: Callable[[], ClusterImage],
        with_settings: Callable[[BrokerConfig, ClusterImage], BrokerConfig],
        schedule_broker_refresh: Callable[[], None],
        request_log_ends: RequestLogEnds,
    ) -> None:
        """See :class:`ControllerContext` and :class:`UncleanRecovery` for the parameters."""
        self.election = ControllerElection(store, broker_id, clock)
        self.context = ControllerContext(
            store,
            self,
            self.election,
            config,
            announce,
            random,
            known_image=known_image,
            with_settings=with_settings,
            schedule_broker_refresh=schedule_broker_refresh,
        )
        self.reassignments = ReassignmentRequests(self.context)
        self.recovery = UncleanRecovery(self.context, request_log_ends)
        self.leader_elections = LeaderElectionRequests(self.context, self.recovery)
        self.admin_manager = AdminManager(self.context, self.reassignments)
        self.failover = Failover(self.context)

    @property
    def image(self) -> ClusterImage:
        """The cluster as this controller last wrote or read it."""
        return self.context.image

    @property
    def is_active(self) -> bool:
        """Whether this broker is the active controller, in its own state; the store may have another."""
        return self.election.is_active

    async def alter_partitions(
        self, requested: Sequence[AlterPartitionItem]
    ) -> list[PartitionImage | KafkaError]:
        """Writes the ISRs that leaders request; see :func:`alter_partitions`. Raises NOT_CONTROLLER."""
        return await alter_partitions(self.context, self.failover, requested)

    def on_leaderless(self) -> None:
        """Begins to recover partitions without a leader."""
        self.recovery.begin()

    async def refresh_brokers(self) -> None:
        """Reads the registrations, and elects leaders."""
        await self.failover.refresh_brokers()

    async def complete_reassignments(self) -> None:
        """Completes the reassignments whose new replicas are in sync."""
        await self.reassignments.finish()

    async def finish_deletions(self) -> None:
        """Continues the topic deletions that a controller began."""
        await self.admin_manager.finish_deletions()
