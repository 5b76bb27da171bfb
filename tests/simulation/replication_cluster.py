"""Simulations of replication alone, with a reliable controller."""

from __future__ import annotations

from promises import PartitionKey
from reliable_controller import ReliableController, new_topic
from replication_broker import ReplicationBroker

from simulation import BATCHES, TOPIC, Node, Simulation
from tidemill.model.configs import BrokerConfig

TOPIC_ID = bytes(range(16))
SETTINGS = {
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.wait.max.ms": "150",
    "replica.fetch.backoff.ms": "50",
}


class ReplicationCluster(Simulation):
    """Three brokers that a reliable controller controls."""

    def __init__(self, seed: int, batches: int = BATCHES) -> None:
        super().__init__(seed, batches)
        node_ids = [node.node_id for node in self.nodes]
        topic = new_topic(TOPIC, TOPIC_ID, self.partition_count, node_ids, self.topic_config)
        self.promises.settings[TOPIC] = self.settings()
        replicas = {one.partition: one.replicas for one in topic.partitions}
        self.promises.topic_written(TOPIC, TOPIC_ID, replicas, {}, {})
        # A replica that could not be created on a full disk is expected in one directory.
        self.moves_directories = self.variations.has_directory_moves and not self.variations.has_full_disks
        timeout_s = self.random.choice((0.4, 1.5))
        self.controller = ReliableController(self.network, self.promises, timeout_s, node_ids, topic)
        self.controller.state_written = self.state_written
        self.config = BrokerConfig.from_sources(
            None, [f"{key}={value}" for key, value in SETTINGS.items()], {}
        )

    def make_server(self, node: Node) -> ReplicationBroker:
        return ReplicationBroker(
            node.node_id,
            self.network,
            node.machine,
            node.files,
            node.clock,
            self.config,
            self.controller,
            ("/data", "/data2") if self.moves_directories else ("/data",),
        )

    def elect_unclean(self, tp: PartitionKey) -> bool:
        self.controller.elect_unclean()
        return True
