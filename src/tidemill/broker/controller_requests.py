"""The requests of a controller to another broker: types and values for both sides."""

from __future__ import annotations

from typing import Final

from tidemill.wire.messages.leader_and_isr import LeaderAndIsrRequest
from tidemill.wire.messages.stop_replica import StopReplicaRequest
from tidemill.wire.messages.update_metadata import UpdateMetadataRequest

ControllerRequest = LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest

DURING_DELETION: Final = -2
"""The leader, and the leader epoch, of a topic that is being deleted."""
FULL_REQUEST: Final = 2
"""The type of requests with the full state. Source: Apache Kafka, ``AbstractControlRequest.Type``."""
