"""The state of a broker that its parts share: configuration, clock, logs, partitions, store, metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.client_software import ClientSoftware
from tidemill.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from tidemill.broker.metadata_cache import MetadataCache
    from tidemill.coordination.coordination_store import Store
    from tidemill.log.log_manager import LogManager
    from tidemill.model.configs import BrokerConfig
    from tidemill.model.system_interfaces import Clock, Files
    from tidemill.replication.partition import Partition
    from tidemill.replication.replica_manager import ReplicaManager


class BrokerState:
    """Its attributes are set while the broker starts, and do not change until it stops."""

    config: BrokerConfig
    clock: Clock
    files: Files
    log_manager: LogManager
    replica_manager: ReplicaManager
    store: Store
    metadata_cache: MetadataCache
    node_id: int
    cluster_id: str

    def __init__(self) -> None:
        self.client_software = ClientSoftware()

    def partition(self, topic: str, index: int) -> Partition:
        """Returns a partition of this broker. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        found = self.replica_manager.find(topic, index)
        if found is None:
            raise KafkaError(f"{topic}-{index} does not exist", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found
