"""A Produce request whose response waits for replicas, or for the disk of the leader. Compiled."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i32, i64, mypyc_attr

from tidemill.broker.produce_codec import PartitionResult, ProduceRequest, Refused, encode
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.net.connection import Connection, PendingResponse
from tidemill.replication.delayed_operations import OffsetWaiter, WatchedPartition
from tidemill.replication.partition import Partition


@mypyc_attr(free_list_len=1)
class AwaitedAppend:
    """An append that is not replicated, or not flushed by the leader, yet.

    Not acyclic: it refers to the partition, which refers to the delayed request.
    """

    def __init__(self, number: int, partition: Partition, required_offset: i64) -> None:
        self.number: Final = number
        """The index of its result in those of the request."""
        self.partition: Final = partition
        self.required_offset: Final[i64] = required_offset
        """The append is complete once all records below it are committed, or flushed."""


class UnsentResponse:
    """A response that waits only for awaited appends."""

    def __init__(
        self, reply: PendingResponse, request: ProduceRequest, results: list[PartitionResult]
    ) -> None:
        self.reply: Final = reply
        self.request: Final = request
        self.results: Final = results
        """The results of the appends, without later errors."""

    def send(self, results: list[PartitionResult]) -> None:
        """Sends it with ``results``, after the responses to earlier requests of its connection."""
        self.reply.complete([encode(self.request, results)])


class DelayedProduce(OffsetWaiter):
    """A request whose response waits for its awaited appends.

    It holds neither records nor the frame of the request. Once the response is sent it holds nothing, because
    the timer may refer to it until the deadline.
    """

    def __init__(self, connection: Connection, acks: i32) -> None:
        self.connection = connection
        self.acks: i32 = acks
        self.awaited: list[AwaitedAppend] = []
        self.failures: dict[int, Refused] = {}
        """The results of the failed appends, by the index of the result that each replaces."""
        self.response: UnsentResponse | None = None
        """None during the appends to the other partitions, and after it is sent."""

    def on_reached(self, partition: WatchedPartition) -> None:
        """Completes the appends of a partition that are committed or flushed."""
        self._complete_appends(partition, None)

    def on_failed(self, partition: WatchedPartition, error: KafkaError) -> None:
        """Fails the appends of a partition, whose records are lost or may be lost."""
        self._complete_appends(partition, error)

    def _complete_appends(self, partition: WatchedPartition, error: KafkaError | None) -> None:
        awaited: list[AwaitedAppend] = []
        for one in self.awaited:
            if one.partition is not partition:
                awaited.append(one)
            elif error is not None:
                self._fail(one, error)
            elif partition.must_delay_response(self.acks, one.required_offset):
                awaited.append(one)
            elif self.acks == -1:
                commit_error = partition.commit_error()
                if commit_error is not None:
                    self._fail(one, commit_error)
        self.awaited = awaited
        if not awaited:
            self._send()

    def _fail(self, append: AwaitedAppend, error: KafkaError) -> None:
        self.failures[append.number] = Refused(append.partition.index, error)

    def with_failures(self, results: list[PartitionResult]) -> list[PartitionResult]:
        """Returns ``results`` with the errors of the appends that failed since."""
        if not self.failures:
            return results
        failures, self.failures = self.failures, {}
        return [failures.get(number, result) for number, result in enumerate(results)]

    def is_completed(self) -> bool:
        """Whether the response is sent, or the connection is closed."""
        return self.response is None or self.connection.closed

    def on_expiration(self) -> None:
        """Fails the appends that are not complete within ``timeout.ms``."""
        response = self.response
        if response is None:
            return
        error = KafkaError(
            f"not committed within timeout.ms={response.request.timeout_ms}", ErrorCode.REQUEST_TIMED_OUT
        )
        for one in self.awaited:
            self._fail(one, error)
        self.awaited = []
        self._send()

    def _send(self) -> None:
        response = self.response
        if response is not None:
            self.response = None
            response.send(self.with_failures(response.results))
