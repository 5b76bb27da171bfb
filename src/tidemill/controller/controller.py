"""The controller of the cluster and its parts.

Every broker has a controller; one of them is active, by its :class:`ControllerElection`. The parts share the
:class:`ControllerContext`, which holds the image of the cluster and writes to the store.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tidemill.controller.admin_manager import AdminManager
from tidemill.controller.controller_context import Announce, ControllerContext
from tidemill.controller.controller_election import ControllerElection
from tidemill.controller.failover import Failover
from tidemill.controller.leader_election_requests import LeaderElectionRequests
from tidemill.controller.reassignment_requests import ReassignmentRequests
from tidemill.controller.unclean_recovery import RequestLogEnds, UncleanRecovery
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.coordination_store import Store
from tidemill.model.configs import BrokerConfig
from tidemill.model.system_interfaces import Clock


class KafkaController:
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
        self.context.on_leaderless = self.recovery.begin
        self.context.refresh_brokers = self.failover.refresh_brokers
        self.context.complete_reassignments = self.reassignments.finish
        self.context.finish_deletions = self.admin_manager.finish_deletions

    @property
    def image(self) -> ClusterImage:
        """The cluster as this controller last wrote or read it."""
        return self.context.image

    @property
    def is_active(self) -> bool:
        """Whether this broker is the active controller, in its own state; the store may have another."""
        return self.election.is_active
