"""Simulations of replication alone: brokers without a controller, and an overseer that decides."""

from __future__ import annotations

from overseer import Overseer, new_topic
from plain_broker import PlainBroker

from simulation import TOPIC, Node, Simulation
from tidemill.model.configs import BrokerConfig

TOPIC_ID = bytes(range(16))
SETTINGS = {
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.wait.max.ms": "150",
    "replica.fetch.backoff.ms": "50",
}


class PlainCluster(Simulation):
    """Three brokers that an overseer commands."""

    def __init__(self, seed: int, steps: int) -> None:
        super().__init__(seed, steps)
        node_ids = [node.node_id for node in self.nodes]
        topic = new_topic(TOPIC, TOPIC_ID, self.partition_count, node_ids, self.min_isr)
        timeout_s = self.random.choice((0.4, 1.5))
        self.overseer = Overseer(self.network, self.testimony, timeout_s, node_ids, topic)
        self.config = BrokerConfig.from_sources(
            None, [f"{key}={value}" for key, value in SETTINGS.items()], {}
        )

    def make_server(self, node: Node) -> PlainBroker:
        return PlainBroker(
            node.node_id, self.network, node.machine, node.files, node.clock, self.config, self.overseer
        )
