"""A fetcher that speaks in messages: what it writes and reads goes through the generated codecs, too."""

from __future__ import annotations

from tidemill.replication.fetcher import Answered, LeaderFetcher, LeadersLog
from tidemill.replication.partition import Partition
from tidemill.wire.messages.fetch import FetchRequest, FetchResponse
from tidemill.wire.schema import decode, encode

BEFORE, BEHIND = b"before", b"behind"
"""Bodies are somewhere in what was received."""


class MessageFetcher:
    """As :class:`LeaderFetcher`, for requests and answers of one version."""

    def __init__(self, fetcher: LeaderFetcher, version: int = 18) -> None:
        self.fetcher = fetcher
        self.version = version
        self.limits = fetcher.limits

    def follow(self, topic_id: bytes, partition: Partition, now_ms: int) -> None:
        """Begins to follow."""
        self.fetcher.follow(topic_id, partition, now_ms, now_ms)

    def leave(self, topic_id: bytes, index: int) -> None:
        """Follows no longer."""
        self.fetcher.leave(topic_id, index)

    def request(self, now_ms: int) -> FetchRequest | None:
        """The next request."""
        body = self.fetcher.request(now_ms, self.version)
        if body is None:
            return None
        request = decode(FetchRequest, self.version, body)
        assert isinstance(request, FetchRequest)
        assert encode(request, self.version) == body
        return request

    def answer(self, response: FetchResponse, now_ms: int) -> Answered:
        """Takes an answer."""
        data = BEFORE + encode(response, self.version) + BEHIND
        result = self.fetcher.answer(data, len(BEFORE), len(data) - len(BEHIND), now_ms, now_ms)
        return Answered([], []) if result is None else result

    def rest_ms(self, now_ms: int) -> int:
        """How soon it is to ask again."""
        return self.fetcher.rest_ms(now_ms)

    def lost(self) -> None:
        """The connection broke."""
        self.fetcher.lost()

    def found(
        self, partition: Partition, topic_id: bytes, first: int, end: int, now_ms: int, first_epoch: int = -1
    ) -> None:
        """The leader told where its log is."""
        self.fetcher.found(partition, topic_id, LeadersLog(first, first_epoch, end), now_ms, now_ms)

    def not_found(self, partition: Partition, topic_id: bytes, now_ms: int) -> None:
        """The leader did not tell where its log is."""
        self.fetcher.not_found(partition, topic_id, now_ms)
