"""A fetch from its decoded request to its response, with its states. Compiled.

A fetch waits while its partitions have fewer bytes to read than ``fetch.min.bytes``. A waiting fetch has its
request and the partitions with which it is registered, but no result of a look-up, so that it keeps no file
open. A session registers its partitions itself (:mod:`tidemill.broker.fetch_session`). Other fetches are
registered with the partitions of their request.

The states::

    LOOKING_UP     the partitions are being looked up, for a large fetch in slices
    WAITING        registered with the partitions, with a deadline
    COUNT_DUE      as LOOKING_UP; then the readable bytes are counted, because a transaction may have ended
    RESPONSE_DUE   as LOOKING_UP; then the response is sent, whatever it has
    COMPLETED      the response is being built or was sent, or the connection is closed
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from tidemill.broker.fetch_partition_data import LogReadResults
from tidemill.broker.fetch_session import FetchSession, SessionPartition
from tidemill.model.transition_table import NONE, TransitionTable
from tidemill.net.connection import Connection, PendingResponse
from tidemill.replication.delayed_operations import FetchWaiter, WatchedPartition
from tidemill.replication.partition import Partition
from tidemill.replication.read_limits import READ_COMMITTED
from tidemill.wire.fetch_layout import FetchRequest

LOOKING_UP: Final[i64] = 0
WAITING: Final[i64] = 1
COUNT_DUE: Final[i64] = 2
RESPONSE_DUE: Final[i64] = 3
COMPLETED: Final[i64] = 4

END_LOOK_UP: Final[i64] = 0
"""All partitions have been looked up, and the response is not sent now."""
COUNT: Final[i64] = 1
"""A transaction may have ended."""
LOOK_UP_AGAIN: Final[i64] = 2
"""The look-up that counts the readable bytes begins."""
RESPOND: Final[i64] = 3
"""The fetch has enough bytes, a partition has another change for the client, or the deadline has passed."""
COMPLETE: Final[i64] = 4
"""The response is built, or the connection is closed."""

TRANSITIONS: Final = TransitionTable(
    "fetch",
    ["LOOKING_UP", "WAITING", "COUNT_DUE", "RESPONSE_DUE", "COMPLETED"],
    ["END_LOOK_UP", "COUNT", "LOOK_UP_AGAIN", "RESPOND", "COMPLETE"],
    [
        [WAITING, COUNT_DUE, NONE, RESPONSE_DUE, COMPLETED],  # LOOKING_UP
        [NONE, COUNT_DUE, NONE, RESPONSE_DUE, COMPLETED],  # WAITING
        [COUNT_DUE, COUNT_DUE, LOOKING_UP, RESPONSE_DUE, COMPLETED],  # COUNT_DUE
        [RESPONSE_DUE, RESPONSE_DUE, NONE, RESPONSE_DUE, COMPLETED],  # RESPONSE_DUE
        [COMPLETED, NONE, NONE, NONE, COMPLETED],  # COMPLETED
    ],
)

NO_REQUEST: Final = FetchRequest(version=0, partitions=())
"""Replaces the request of a completed fetch."""


class FetchCompletion:
    """Completes a delayed fetch after a change of its partitions."""

    def complete_later(self, fetch: DelayedFetch) -> None:
        """Sends the response in the next turn of the event loop, with all appends of this turn."""
        raise NotImplementedError

    def complete(self, fetch: DelayedFetch) -> None:
        """Sends the response with the bytes that can be read now."""
        raise NotImplementedError

    def send_results(self, fetch: DelayedFetch) -> None:
        """Builds and sends the response from converted results."""
        raise NotImplementedError

    def count_committed(self, fetch: DelayedFetch) -> None:
        """Counts the readable bytes of a waiting fetch again, as a transaction may have ended."""
        raise NotImplementedError

    def is_throttled(self, fetch: DelayedFetch, partition: WatchedPartition) -> bool:
        """Whether the replication quota keeps the partition's records from this follower now."""
        raise NotImplementedError

    def followers_serve_consumers(self) -> bool:
        """Whether consumers fetch from followers, which then need each new high watermark at once."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class SlicedFetch:
    """Handles one large fetch in slices."""

    def resume(self) -> None:
        """Continues a fetch that has waited, in the state that followed: counts, responds or releases it."""
        raise NotImplementedError

    def send(self) -> None:
        """Builds and sends the response from the results."""
        raise NotImplementedError


class DelayedFetch(FetchWaiter):
    """A fetch of one connection."""

    def __init__(
        self,
        completion: FetchCompletion,
        connection: Connection,
        request: FetchRequest,
        results: LogReadResults,
    ) -> None:
        self.completion = completion
        self.connection = connection
        self.request = request
        self.results = results
        """The results of the last look-up."""
        self.reply: PendingResponse | None = None
        """Its place in the order of the connection's responses, if it is not completed at once."""
        self.session: FetchSession | None = None
        self.session_partitions: list[SessionPartition] = []
        """The partitions to be looked up, with a session. Without one, those of the request are looked up."""
        self.registered_on: list[Partition] = []
        """The partitions that notify the fetch, without a session."""
        self.sliced: SlicedFetch | None = None
        """None: the fetch is not handled in slices."""
        self.state: i64 = LOOKING_UP

    def apply(self, event: i64) -> None:
        """Changes the state. Raises RuntimeError if the state has no transition for ``event``."""
        self.state = TRANSITIONS.after(self.state, event)

    @property
    def count(self) -> i64:
        """The number of partitions to be looked up."""
        return len(self.request.partitions) if self.session is None else len(self.session_partitions)

    def register(self) -> None:
        """Registers the fetch with the partitions of the look-up, and releases the results."""
        self.begin_registration()
        self.register_some(0, self.count)
        self.drop_results()

    def begin_registration(self) -> None:
        """Registers the fetch with its session, whose partitions then notify it."""
        if self.session is not None:
            self.session.waiters.append(self)

    def register_some(self, begin: i64, end: i64) -> None:
        """Registers the partitions from ``begin`` up to ``end``, which have been looked up."""
        found = self.results.partitions
        if self.session is not None:
            self.session.register_some(self.session_partitions, found, begin, end)
            return
        index = begin
        while index < end:
            partition = found[index].partition
            if partition is not None:
                partition.delayed.wait_readable(self, self.request.replica_id)
                self.registered_on.append(partition)
            index += 1

    def unregister(self) -> None:
        """Removes the fetch from its session and all partitions."""
        self.unregister_some(len(self.registered_on))

    def unregister_some(self, count: i64) -> bool:
        """Removes the fetch from its session and up to ``count`` partitions. Returns whether none is left."""
        if self.session is not None and self in self.session.waiters:
            self.session.waiters.remove(self)
        while self.registered_on and count > 0:
            self.registered_on.pop().delayed.stop_waiting(self)
            count -= 1
        return not self.registered_on

    def on_readable(self, partition: WatchedPartition, added_bytes: i64) -> None:
        """Notifies the fetch that a partition has more bytes, or another change for the client."""
        if self.state == COMPLETED:
            return
        results = self.results
        if results.is_throttled and added_bytes > 0 and self.completion.is_throttled(self, partition):
            return
        if (
            added_bytes > 0
            and self.request.isolation == READ_COMMITTED
            and (results.is_limited_by_transaction or partition.has_transactions())
        ):
            self.completion.count_committed(self)
            return
        results.bytes_added += added_bytes
        if added_bytes == 0 or results.bytes_readable >= results.bytes_min:
            self.completion.complete_later(self)

    def on_change(self, partition: WatchedPartition, committed: bool) -> None:
        """Sends a new high watermark at once to a follower that serves consumers."""
        if committed and self.state != COMPLETED and self.completion.followers_serve_consumers():
            self.completion.complete_later(self)

    def on_expiration(self) -> None:
        """Completes the fetch after ``fetch.max.wait.ms``."""
        if self.state != COMPLETED:
            self.completion.complete(self)

    def is_completed(self) -> bool:
        """Whether the fetch is completed, or its connection is closed."""
        return self.state == COMPLETED or self.connection.closed

    def drop_results(self) -> None:
        """Releases the results. The session, or the request, has the partitions for the next look-up."""
        self.session_partitions = []
        self.results.partitions = []

    def drop(self) -> None:
        """Releases request, results and session. The timer refers to the fetch itself until the deadline."""
        self.drop_results()
        self.request = NO_REQUEST
        self.sliced = None
        session = self.session
        self.session = None
        if session is not None and session.ended:
            session.end()
