"""Listeners of a broker's parts without a broker. Tests replace single methods on their instances."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.broker.apply_leader_and_isr import LeaderAndIsrListener
from tidemill.coordination.topic_image import TopicImage
from tidemill.replication.partition import Partition
from tidemill.replication.replica_manager import ReplicaManager, ReplicaManagerListener


class IgnoringReplicaManagerListener(ReplicaManagerListener):
    """Rejects every other ISR, and considers every broker registered."""

    def alter_isr(self, partition: Partition, isr: tuple[int, ...], partition_epoch: int) -> None:
        replicas = partition.events
        assert isinstance(replicas, ReplicaManager)
        replicas.isr_refused(partition)

    def is_registered(self, broker_id: int) -> bool:
        return True

    def directory_failed(self) -> None:
        pass

    def directory_distrusted(self) -> None:
        pass


class RecordingLeaderAndIsrListener(LeaderAndIsrListener):
    """Records the failed and the served replicas, and the refused deletions."""

    def __init__(self) -> None:
        self.failed: list[tuple[bytes, int]] = []
        self.served: list[tuple[bytes, int]] = []
        self.refused_topics: list[TopicImage] = []
        self.refused_replicas: list[tuple[TopicImage, int]] = []
        self.controller_moves = 0

    def own_replicas_failed(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        self.failed += partitions

    def own_replicas_served(self, partitions: Sequence[tuple[bytes, int]]) -> None:
        self.served += partitions

    def topic_deletion_refused(self, topic: TopicImage) -> None:
        self.refused_topics.append(topic)

    def replica_deletion_refused(self, topic: TopicImage, index: int) -> None:
        self.refused_replicas.append((topic, index))

    def controller_moved(self) -> None:
        self.controller_moves += 1
