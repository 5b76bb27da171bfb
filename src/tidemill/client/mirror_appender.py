"""Appends batches of another cluster to mirrors, with the offsets that they have.

Uses Produce requests at the inter-broker listener of the brokers, to which ``bootstrap.servers`` must lead
(``docs/decisions/mirrored-topics.md``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.client.config import config_of
from tidemill.client.config_keys import COMMON
from tidemill.client.connection import InFlightRequest
from tidemill.client.errors import BrokerUnreachable, RequestTimeout, check
from tidemill.client.network_client import DATA, NetworkClient
from tidemill.client.offsets import list_offsets
from tidemill.model.errors import ErrorCode
from tidemill.model.types import ZERO_ID, TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.list_offset_timestamps import LATEST
from tidemill.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

TOPIC_ID_FROM = 13
"""The first version of Produce with topic ids instead of names."""


class MirrorAppender:
    """Sends mirrored batches to the leaders, which append those that their logs do not have.

    It repeats nothing: after an error the sender continues at :meth:`log_end`. For one thread.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        config: Mapping[str, Any] | None = None,
        /,
        **keywords: Any,
    ) -> None:
        given = {"client.id": "tidemill-mirror", **(config or {})}
        self.config = config_of(COMMON, bootstrap_servers, given, keywords)
        self._network_client = NetworkClient(self.config)
        self._timeout_s = self.config.seconds("default.api.timeout.ms")

    def log_end(self, item: TopicPartition) -> int:
        """Returns the offset after the last batch that all in-sync replicas have."""
        found = list_offsets(self._network_client, {item: LATEST}, time.monotonic() + self._timeout_s)
        return found[item].offset

    def send(self, item: TopicPartition, batches: bytes) -> InFlightRequest:
        """Sends batches to the leader of a partition, and returns at once.

        Several requests may be in flight: their order is kept, and the leader refuses a batch that would
        leave a gap after one that it has not stored. Raises ClientError if the leader cannot be reached.
        """
        deadline = time.monotonic() + self._timeout_s
        topic = self._network_client.topic(item.topic, deadline, partition=item.partition)
        leader = self._network_client.leader(item.topic, item.partition)
        if leader < 0:
            self._network_client.request_refresh()
            raise BrokerUnreachable(f"{item} has no leader; wait, or check the brokers of its replicas")
        connection = self._network_client.connection(leader, DATA, deadline)
        version = connection.version(ApiKey.PRODUCE)
        if topic.topic_id == ZERO_ID:
            version = min(version, TOPIC_ID_FROM - 1)
        message = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=self.config.int("request.timeout.ms"),
            topic_data=[
                TopicProduceData(
                    name=item.topic,
                    topic_id=topic.topic_id,
                    partition_data=[PartitionProduceData(index=item.partition, records=batches)],
                )
            ],
        )
        return connection.send(ApiKey.PRODUCE, message, version=version)

    def wait(self, item: TopicPartition, request: InFlightRequest) -> None:
        """Waits until all in-sync replicas have the batches of a request. Raises ClientError."""
        broker = request.connection.address
        request.connection.wait(request, max(0.0, request.expires_s - time.monotonic()) + 1)
        if request.error is None and not request.done:
            request.connection.close()
            raise RequestTimeout(
                f"broker {broker} has not answered Produce {request.wait_text}", broker=broker
            )
        response = request.response(ProduceResponse)
        for topic in response.responses:
            for entry in topic.partition_responses:
                check(
                    entry.error_code,
                    f"append to the mirror {item}",
                    detail=entry.error_message,
                    broker=broker,
                    topic=item.topic,
                    partition=item.partition,
                )
                return
        raise BrokerUnreachable(
            f"broker {broker} omitted {item} from its response", ErrorCode.NETWORK_EXCEPTION, broker=broker
        )

    def close(self) -> None:
        """Closes the connections."""
        self._network_client.close()
