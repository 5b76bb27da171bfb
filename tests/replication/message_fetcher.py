"""A fetcher with an interface of messages: requests and responses pass through the generated codecs."""

from __future__ import annotations

from tidemill.replication.partition import Partition
from tidemill.replication.replica_fetcher import FetchOutcome, LeaderOffsets, ReplicaFetcher
from tidemill.wire.codec import decode, encode
from tidemill.wire.messages.fetch import FetchRequest, FetchResponse

BEFORE, BEHIND = b"before", b"behind"
"""Bodies are somewhere in what was received."""


class MessageFetcher:
    """A :class:`ReplicaFetcher` for requests and responses of one version."""

    def __init__(self, fetcher: ReplicaFetcher, version: int = 18) -> None:
        self.fetcher = fetcher
        self.version = version
        self.limits = fetcher.limits

    def add_partition(self, topic_id: bytes, partition: Partition, now_ms: int) -> None:
        """Adds a partition."""
        self.fetcher.add_partition(topic_id, partition, now_ms, now_ms)

    def remove_partition(self, topic_id: bytes, index: int) -> None:
        """Removes a partition."""
        self.fetcher.remove_partition(topic_id, index)

    def build_request(self, now_ms: int) -> FetchRequest | None:
        """Builds the next request."""
        body = self.fetcher.build_request(now_ms, self.version)
        if body is None:
            return None
        request = decode(FetchRequest, self.version, body)
        assert isinstance(request, FetchRequest)
        assert encode(request, self.version) == body
        return request

    def handle_response(self, response: FetchResponse, now_ms: int) -> FetchOutcome:
        """Handles a response."""
        data = BEFORE + encode(response, self.version) + BEHIND
        result = self.fetcher.handle_response(data, len(BEFORE), len(data) - len(BEHIND), now_ms, now_ms)
        return FetchOutcome([], []) if result is None else result

    def retry_delay_ms(self, now_ms: int) -> int:
        """Returns the delay before the next request."""
        return self.fetcher.retry_delay_ms(now_ms)

    def on_disconnect(self) -> None:
        """Handles a broken connection."""
        self.fetcher.on_disconnect()

    def apply_leader_offsets(
        self, partition: Partition, topic_id: bytes, first: int, end: int, now_ms: int, first_epoch: int = -1
    ) -> None:
        """Handles the offsets of the leader's log."""
        self.fetcher.apply_leader_offsets(
            partition, topic_id, LeaderOffsets(first, first_epoch, end), now_ms, now_ms
        )

    def leader_offsets_failed(self, partition: Partition, topic_id: bytes, now_ms: int) -> None:
        """Handles a failed request for the offsets of the leader's log."""
        self.fetcher.leader_offsets_failed(partition, topic_id, now_ms)
