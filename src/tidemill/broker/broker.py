"""What a broker is made of: the parts that a handler may reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.client_software import ClientSoftware
from tidemill.model.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from tidemill.broker.carrying_out import CarryingOut
    from tidemill.broker.controller_link import ControllerLink
    from tidemill.broker.held_answers import HeldAnswers
    from tidemill.broker.metadata import MetadataCache
    from tidemill.broker.store_connectivity import StoreConnectivity
    from tidemill.broker.throttling import Throttling
    from tidemill.controller.failover import Failover
    from tidemill.controller.shell import Controller
    from tidemill.coordination.port import Store
    from tidemill.groups.service import GroupService
    from tidemill.log.manager import LogManager
    from tidemill.model.configs import BrokerConfig
    from tidemill.model.ports import Clock, Files
    from tidemill.replication.manager import ReplicaManager
    from tidemill.replication.partition import Partition
    from tidemill.transactions.producer_ids import ProducerIds


class Broker:
    """One broker's parts. They are put in one by one while it starts, and stay until it stops."""

    config: BrokerConfig
    clock: Clock
    files: Files
    logs: LogManager
    partitions: ReplicaManager
    store: Store
    store_connectivity: StoreConnectivity
    metadata: MetadataCache
    controller: Controller
    failover: Failover
    controller_link: ControllerLink | None = None
    """None for a broker without others."""
    held_answers: HeldAnswers | None = None
    """The same."""
    commands: CarryingOut
    throttling: Throttling | None = None
    """The same."""
    groups: GroupService
    producer_ids: ProducerIds
    node_id: int
    cluster_id: str

    def __init__(self) -> None:
        self.client_software = ClientSoftware()

    def partition(self, topic: str, index: int) -> Partition:
        """A partition that this broker has. UNKNOWN_TOPIC_OR_PARTITION when it has not."""
        found = self.partitions.find(topic, index)
        if found is None:
            raise KafkaError(f"{topic}-{index} does not exist", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found
