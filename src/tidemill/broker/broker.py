"""A broker: its state, and the services that request handlers use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.broker_state import BrokerState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemill.broker.api_declaration import HandledApi
    from tidemill.broker.apply_leader_and_isr import LeaderAndIsrApplier
    from tidemill.broker.broker_to_controller_channel import BrokerToControllerChannel
    from tidemill.broker.controller_request_handler import ControllerRequests
    from tidemill.broker.delayed_metadata import DelayedMetadata
    from tidemill.broker.replication_quotas import ReplicationQuotas
    from tidemill.broker.request_context import RequestContext
    from tidemill.broker.store_connectivity import StoreConnectivity
    from tidemill.controller.controller import KafkaController
    from tidemill.controller.failover import Failover
    from tidemill.groups.group_coordinator import GroupCoordinator
    from tidemill.transactions.producer_ids import ProducerIds


class Broker(BrokerState):
    """The services of one broker. Those that may be None exist only in a cluster."""

    apis: Mapping[int, HandledApi]
    """The APIs that this broker handles, by key."""
    controller: KafkaController
    failover: Failover
    store_connectivity: StoreConnectivity
    leader_and_isr: LeaderAndIsrApplier
    group_coordinator: GroupCoordinator
    producer_ids: ProducerIds
    controller_requests: ControllerRequests | None = None
    controller_channel: BrokerToControllerChannel | None = None
    delayed_metadata: DelayedMetadata | None = None
    replication_quotas: ReplicationQuotas | None = None
    inter_broker_listener: str | None = None
    """The name of the listener for other brokers."""

    def is_from_broker(self, context: RequestContext) -> bool:
        """Whether a request has arrived at the inter-broker listener."""
        return self.inter_broker_listener is not None and context.listener.name == self.inter_broker_listener
