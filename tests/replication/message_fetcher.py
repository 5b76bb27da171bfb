"""A fetcher with an interface of messages: requests and responses pass through the generated codecs."""

from __future__ import annotations

from tidemill.replication.partition import Partition
from tidemill.replication.replica_fetcher import Answered, LeadersLog, ReplicaFetcher
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

    def follow(self, topic_id: bytes, partition: Partition, now_ms: int) -> None:
        """Adds a partition."""
        self.fetcher.follow(topic_id, partition, now_ms, now_ms)

    def leave(self, topic_id: bytes, index: int) -> None:
        """Removes a partition."""
        self.fetcher.leave(topic_id, index)

    def request(self, now_ms: int) -> FetchRequest | None:
        """Builds the next request."""
        body = self.fetcher.request(now_ms, self.version)
        if body is None:
            return None
        request = decode(FetchRequest, self.version, body)
        assert isinstance(request, FetchRequest)
        assert encode(request, self.version) == body
        return request

    def answer(self, response: FetchResponse, now_ms: int) -> Answered:
        """Handles a response."""
        data = BEFORE + encode(response, self.version) + BEHIND
        result = self.fetcher.answer(data, len(BEFORE), len(data) - len(BEHIND), now_ms, now_ms)
        return Answered([], []) if result is None else result

    def rest_ms(self, now_ms: int) -> int:
        """Returns the delay before the next request."""
        return self.fetcher.rest_ms(now_ms)

    def lost(self) -> None:
        """Handles a broken connection."""
        self.fetcher.lost()

    def found(
        self, partition: Partition, topic_id: bytes, first: int, end: int, now_ms: int, first_epoch: int = -1
    ) -> None:
        """Handles the offsets of the leader's log."""
        self.fetcher.found(partition, topic_id, LeadersLog(first, first_epoch, end), now_ms, now_ms)

    def not_found(self, partition: Partition, topic_id: bytes, now_ms: int) -> None:
        """Handles a failed request for the offsets of the leader's log."""
        self.fetcher.not_found(partition, topic_id, now_ms)
