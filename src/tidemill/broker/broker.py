"""A broker: its configuration, clock, logs, partitions, store and metadata, and its services."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidemill.broker.client_software import ClientSoftware
from tidemill.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemill.broker.add_partitions_to_txn_manager import AddPartitionsToTxnManager
    from tidemill.broker.api_declaration import ServedApi
    from tidemill.broker.apply_leader_and_isr import LeaderAndIsrApplier
    from tidemill.broker.broker_to_controller_channel import BrokerToControllerChannel
    from tidemill.broker.controller_request_handler import ControllerRequestHandler
    from tidemill.broker.delayed_metadata import DelayedMetadata
    from tidemill.broker.finalized_features import FinalizedFeatures
    from tidemill.broker.metadata_cache import MetadataCache
    from tidemill.broker.replication_quotas import ReplicationQuotas
    from tidemill.broker.request_context import RequestContext
    from tidemill.broker.store_connectivity import StoreConnectivity
    from tidemill.controller.controller import KafkaController
    from tidemill.coordination.coordination_store import Store
    from tidemill.groups.group_coordinator import GroupCoordinator
    from tidemill.log.log_manager import LogManager
    from tidemill.model.configs import BrokerConfig
    from tidemill.model.system_interfaces import Clock, Files
    from tidemill.replication.partition import Partition
    from tidemill.replication.replica_manager import ReplicaManager
    from tidemill.transactions.producer_id_manager import ProducerIdManager
    from tidemill.transactions.transaction_coordinator import TransactionCoordinator


class ClusterParts(NamedTuple):
    """The parts of a broker that communicate with the other brokers of its cluster."""

    inter_broker_listener: str
    """The name of the listener for other brokers."""
    controller_channel: BrokerToControllerChannel
    controller_requests: ControllerRequestHandler
    delayed_metadata: DelayedMetadata
    replication_quotas: ReplicationQuotas


class Broker:
    """The parts of one broker. They are set while it starts; only the configuration changes afterwards."""

    config: BrokerConfig
    clock: Clock
    files: Files
    log_manager: LogManager
    replica_manager: ReplicaManager
    store: Store
    metadata_cache: MetadataCache
    node_id: int
    cluster_id: str
    apis: Mapping[int, ServedApi]
    """The APIs that this broker handles, by key."""
    controller: KafkaController
    store_connectivity: StoreConnectivity
    leader_and_isr: LeaderAndIsrApplier
    group_coordinator: GroupCoordinator
    producer_id_manager: ProducerIdManager
    transaction_coordinator: TransactionCoordinator
    add_partitions_to_txn: AddPartitionsToTxnManager
    features: FinalizedFeatures
    cluster: ClusterParts | None = None
    """None with the embedded store."""

    def __init__(self) -> None:
        self.client_software = ClientSoftware()

    def partition(self, topic: str, index: int) -> Partition:
        """Returns a partition of this broker. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        found = self.replica_manager.find(topic, index)
        if found is None:
            raise KafkaError(f"{topic}-{index} does not exist", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found

    def is_from_broker(self, context: RequestContext) -> bool:
        """Whether a request has arrived at the inter-broker listener."""
        cluster = self.cluster
        return cluster is not None and context.listener.name == cluster.inter_broker_listener
