"""Delays responses that name a broker whose process may just have ended, until its successor is known.

A client that loses its connection to a leader requests metadata from another broker at once. The controller
needs a quarter of a second to detect the end of the process and to elect a leader. A response before that
names the former leader, and many clients wait for a second before the next request. So this broker delays the
responses of Metadata and FindCoordinator that name a suspected broker: one that has just closed, reset or
refused a connection of this broker. The delay ends when the image names another leader, when the suspected
broker accepts a connection, or ``DELAY_S_MAX`` after the connection broke. A broker is suspected again after
it has left the image, or, if it accepts connections, after ``RESUSPECT_AFTER_S``. See
docs/decisions/delayed-metadata-responses.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Iterable
from collections.abc import Set as AbstractSet
from typing import Final

from tidemill.broker.broker_links import BrokerConnectionListener
from tidemill.broker.request_context import RequestContext
from tidemill.coordination.cluster_image import ClusterImage, Delta
from tidemill.model.event_loop_slices import run_in_slices, slices_of
from tidemill.net.memory_pool import MemoryPool

DELAY_S_MAX: Final = 0.5
"""The longest delay, from the time at which the connection broke."""
RESUSPECT_AFTER_S: Final = 10.0
"""A broker that breaks connections more often is alive, and is not suspected again."""
DELAYED_RESPONSES_MAX: Final = 1000
"""Responses that are delayed at the same time. Others are sent at once."""
DELAYED_BYTES_MAX: Final = 16 * 1024 * 1024
"""The memory of all delayed requests together."""
REQUEST_BYTES: Final = 4 * 1024
ITEM_BYTES: Final = 512
"""The memory of a delayed request, and of each topic or group that it names."""
COMPLETED_PER_TURN: Final = 10
"""Responses that are built in one turn of the event loop: each takes some tenths of a millisecond."""
PARTITIONS_PER_SLICE: Final = 1000


class _SuspectedBroker:
    """A broker that has closed, reset or refused a connection."""

    __slots__ = ("is_connected", "is_delaying", "suspected_at", "timer")

    def __init__(self, suspected_at: float, timer: asyncio.TimerHandle) -> None:
        self.suspected_at = suspected_at
        self.timer = timer
        self.is_delaying = True
        """Whether responses are delayed for it: less than ``DELAY_S_MAX``, and without a connection since."""
        self.is_connected = False


class DelayedMetadata(BrokerConnectionListener):
    """The suspected brokers and the delayed requests. All methods run in the thread of the event loop."""

    def __init__(self) -> None:
        self.suspected: AbstractSet[int] = frozenset()
        """The brokers for which responses are delayed now."""
        self.change_count = 0
        """Incremented by each change that may change a delayed response."""
        self.delayed_bytes = 0
        self.total = 0
        """Responses that were delayed since the start."""
        self._suspects: dict[int, _SuspectedBroker] = {}
        self._image = ClusterImage()
        self._led_topics: asyncio.Task[frozenset[bytes | str]] | None = None
        """Finds the topics that suspected brokers lead, until the next change."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._to_complete = 0
        self._is_completing = False
        self._is_closed = False

    # Changes of brokers

    def disconnected(self, broker_id: int) -> None:
        """Delays responses that name the broker, unless they were delayed for it before."""
        if self._is_closed or broker_id not in self._image.brokers:
            return
        loop = asyncio.get_running_loop()
        known = self._suspects.get(broker_id)
        if known is not None and not (
            known.is_connected and loop.time() >= known.suspected_at + RESUSPECT_AFTER_S
        ):
            return
        timer = loop.call_later(DELAY_S_MAX, self._stop_delaying, broker_id)
        self._suspects[broker_id] = _SuspectedBroker(loop.time(), timer)
        self._update_suspected()

    def connected(self, broker_id: int) -> None:
        """Ends the delay for a broker: it is alive."""
        known = self._suspects.get(broker_id)
        if known is not None:
            known.is_connected = True
            self._stop_delaying(broker_id)

    async def image_changed(self, delta: Delta) -> None:
        """Has the delayed responses built again, with the new image."""
        self._image = image = delta.image
        for broker_id in [one for one in self._suspects if one not in image.brokers]:
            self._suspects.pop(broker_id).timer.cancel()
        if self.suspected:
            self._update_suspected()

    def close(self) -> None:
        """Ends all delays, as this broker stops."""
        self._is_closed = True
        for one in self._suspects.values():
            one.timer.cancel()
        self._suspects.clear()
        self._update_suspected()

    def _stop_delaying(self, broker_id: int) -> None:
        known = self._suspects[broker_id]
        if known.is_delaying:
            known.is_delaying = False
            known.timer.cancel()
            self._update_suspected()

    def _update_suspected(self) -> None:
        self.suspected = frozenset(one for one, suspect in self._suspects.items() if suspect.is_delaying)
        self.change_count += 1
        self._led_topics = None
        self._to_complete = len(self._waiting)
        if self._to_complete and not self._is_completing:
            self._is_completing = True
            asyncio.get_running_loop().call_soon(self._complete_some)

    # Delayed requests

    async def topics_led_by_suspected(self) -> frozenset[bytes | str]:
        """Returns names and ids of the topics with a partition whose leader is a suspected broker."""
        if self._led_topics is None:
            search = run_in_slices(_topics_led_by(self._image, self.suspected))
            self._led_topics = asyncio.get_running_loop().create_task(search)
        return await asyncio.shield(self._led_topics)

    async def wait_for_change(self, context: RequestContext, items: int, change_count: int) -> bool:
        """Waits for a change after ``change_count``. Returns False at once if the request must not wait.

        ``items``: the number of topics or groups in the request.
        """
        if change_count != self.change_count:
            return True
        memory: MemoryPool | None = context.queue.memory if context.queue is not None else None
        count = REQUEST_BYTES + items * ITEM_BYTES
        if (
            not self.suspected
            or len(self._waiting) >= DELAYED_RESPONSES_MAX
            or self.delayed_bytes + count > DELAYED_BYTES_MAX
            or (memory is not None and memory.total + count > memory.bytes_max >> 1)
        ):
            return False
        completed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(completed)
        self.total += 1
        self.delayed_bytes += count
        if memory is not None:
            memory.reserve(count)
        try:
            await context.slices.wait_for(completed)
        finally:
            self.delayed_bytes -= count
            if memory is not None:
                memory.release(count)
        return True

    def _complete_some(self) -> None:
        """Completes the requests that waited at the last change, some in each turn of the event loop."""
        for _ in range(min(self._to_complete, COMPLETED_PER_TURN)):
            self._to_complete -= 1
            completed = self._waiting.popleft()
            if not completed.done():
                completed.set_result(None)
        self._is_completing = self._to_complete > 0
        if self._is_completing:
            asyncio.get_running_loop().call_soon(self._complete_some)


def _topics_led_by(
    image: ClusterImage, brokers: Iterable[int]
) -> Generator[None, None, frozenset[bytes | str]]:
    """Returns the names and ids of the topics with a partition that one of ``brokers`` leads.

    Yields in between.
    """
    leaders = frozenset(brokers)
    found: set[bytes | str] = set()
    count = 0
    for topic in image.topic_index.with_replicas_on(leaders):
        for some in slices_of(topic.partitions, PARTITIONS_PER_SLICE):
            count += len(some)
            if count > PARTITIONS_PER_SLICE:
                count = len(some)
                yield
            if any(one.leader in leaders for one in some):
                found |= {topic.name, topic.topic_id}
                break
    return frozenset(found)
