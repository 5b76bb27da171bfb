"""Requests for log ends: all live replicas are requested, with a timeout for missing responses."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.broker.replica_log_end_requests import Ends, ReplicaLogEndRequests
from tidemill.controller.leader_election import LogEnd
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition
from tidemill.net.link import LinkRefused
from tidemill.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

HERE, QUICK, SILENT, AWAY = 1, 2, 3, 4
KEY, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
PATIENCE_S = 0.5
ANSWER_S_MAX = 10.0
"""Far below the timeout of a request."""


class Peer:
    """The peer of a link, which returns the log end of each partition from a given attempt on."""

    def __init__(self, broker: int, known_from: int = 1) -> None:
        self.broker = broker
        self.known_from = known_from
        self.requests = 0
        self.closed = False

    def version_of(self, api: int, oldest: int, newest: int) -> int:
        return newest

    async def request(
        self, api: int, version: int, request: ListOffsetsRequest, response_type: type, patience_s: float
    ) -> ListOffsetsResponse:
        if self.broker == SILENT:
            await asyncio.sleep(patience_s)
        self.requests += 1
        code = ErrorCode.NONE if self.requests >= self.known_from else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(
                            partition_index=one.partition_index, error_code=code, leader_epoch=4, offset=50
                        )
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def close(self, reason: str) -> None:
        self.closed = True


class Network:
    """A network in which one broker is unreachable."""

    def __init__(self, *peers: Peer) -> None:
        self.peers = {peer.broker: peer for peer in peers}

    async def open(self, broker: int) -> Peer:
        if broker not in self.peers:
            raise LinkRefused(f"broker {broker} refuses")
        return self.peers[broker]


def partition(epoch: int, end: int, *, is_offline: bool = False) -> Any:
    """A replica of this broker."""
    return SimpleNamespace(
        is_offline=is_offline,
        log=SimpleNamespace(leader_epochs=SimpleNamespace(latest=epoch), end_offset=end),
    )


def log_ends(network: Network, wanted: dict[int, list[TopicPartition]], here: dict[int, Any]) -> Ends:
    """Returns the log ends that are known at the timeout."""
    replicas: Any = SimpleNamespace(find=lambda topic, index: here.get(index))
    links: Any = network
    requests = ReplicaLogEndRequests(HERE, BrokerConfig.of, replicas, links)

    async def story() -> Ends:
        return await asyncio.wait_for(requests.request(wanted, PATIENCE_S), ANSWER_S_MAX)

    return asyncio.run(story())


def test_the_request_ends_at_its_timeout_without_the_missing_log_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    quick, silent = Peer(QUICK), Peer(SILENT)
    wanted = {broker: [KEY] for broker in (HERE, QUICK, SILENT, AWAY)}
    with caplog.at_level(logging.WARNING, "tidemill.controller"):
        ends = log_ends(Network(quick, silent), wanted, {0: partition(3, 70)})
    assert ends == {KEY: {HERE: LogEnd(3, 70), QUICK: LogEnd(4, 50)}}
    (warning,) = [one.getMessage() for one in caplog.records]
    assert warning == "brokers [3, 4] did not return their log ends within 0.5 s"
    assert (quick.closed, silent.closed) == (True, True)


def test_a_replica_that_is_not_open_yet_is_requested_again(caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer(QUICK, known_from=3)
    with caplog.at_level(logging.WARNING, "tidemill.controller"):
        ends = log_ends(Network(peer), {QUICK: [KEY, OTHER]}, {})
    assert ends == {KEY: {QUICK: LogEnd(4, 50)}, OTHER: {QUICK: LogEnd(4, 50)}}
    assert peer.requests == 3
    assert caplog.records == []


def test_a_failed_replica_of_this_broker_has_no_log_end(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tidemill.controller"):
        ends = log_ends(
            Network(), {HERE: [KEY, OTHER]}, {0: partition(3, 70, is_offline=True), 1: partition(3, 60)}
        )
    assert ends == {KEY: {}, OTHER: {HERE: LogEnd(3, 60)}}
    assert "brokers [1] did not return their log ends" in caplog.text
