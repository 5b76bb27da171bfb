"""The controller of the cluster and its parts.

Every broker has a controller; one of them is active. The parts share the :class:`ControllerContext`, which is
elected, holds the image of the cluster and writes to the store.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tidemill.controller.admin_manager import AdminManager
from tidemill.controller.controller_context import Announce, ControllerContext
from tidemill.controller.leader_election_requests import LeaderElectionRequests
from tidemill.controller.reassignment_requests import ReassignmentRequests
from tidemill.controller.unclean_recovery import UncleanRecovery
from tidemill.coordination.cluster_image import ClusterImage
from tidemill.coordination.coordination_store import Store
from tidemill.model.configs import BrokerConfig
from tidemill.model.interfaces import Clock


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
    ) -> None:
        """See :class:`ControllerContext` for the parameters."""
        self.context = ControllerContext(store, broker_id, config, announce, clock, random)
        self.reassignments = ReassignmentRequests(self.context)
        self.recovery = UncleanRecovery(self.context)
        self.leader_elections = LeaderElectionRequests(self.context, self.recovery)
        self.admin_manager = AdminManager(self.context, self.reassignments)
        self.context.complete_reassignments = self.reassignments.finish
        self.context.finish_deletions = self.admin_manager.finish_deletions

    @property
    def image(self) -> ClusterImage:
        """The cluster as this controller last wrote or read it."""
        return self.context.image

    @property
    def is_active(self) -> bool:
        """Whether this broker is the active controller, as far as it knows."""
        return self.context.is_active
