"""Answers that name a broker whose process may just have ended, held until its successor is known.

A client that loses its connection to a leader asks another broker at once who leads now. The controller
needs a quarter of a second to find the broker dead and to elect. An answer before that names the dead
leader, and many clients ask again only at a tick of a second. So this broker holds the answers of
Metadata and FindCoordinator that name a broker which has just closed, reset or refused a connection of
this broker's own. It holds them until the image names another one, until the broker takes a connection,
or until ``HOLD_S`` have passed since the connection broke. Then it answers at once. It holds answers for
that broker again after the broker has left the image; or, when the broker takes connections, ``STEADY_S``
later. See docs/decisions/held-answers.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Iterable
from collections.abc import Set as AbstractSet
from typing import Final

from tidemill.broker.context import RequestContext
from tidemill.broker.links import LinkWatch
from tidemill.coordination.image import ClusterImage, Delta
from tidemill.model.slices import slices_of, with_pauses
from tidemill.net.memory import Memory

HOLD_S: Final = 0.5
"""An answer is held for so long at most, counted from the moment at which the connection broke."""
STEADY_S: Final = 10.0
"""A broker that breaks connections more often lives: answers are not held for it again."""
HELD_MAX: Final = 1000
"""Answers that are held at the same time; others are sent at once."""
HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""What they all may take."""
REQUEST_BYTES: Final = 4 * 1024
ITEM_BYTES: Final = 512
"""What a request takes that waits, and each topic or group that it names."""
RELEASED_A_TURN: Final = 10
"""Answers that go on in one turn of the loop: each takes some tenths of a millisecond to make."""
PARTITIONS_A_PAUSE: Final = 1000


class _Doubt:
    """A broker whose connection broke."""

    __slots__ = ("began", "is_held_for", "is_reached", "timer")

    def __init__(self, began: float, timer: asyncio.TimerHandle) -> None:
        self.began = began
        self.timer = timer
        self.is_held_for = True
        """Its time is not over, and it has taken no connection since."""
        self.is_reached = False


class HeldAnswers(LinkWatch):
    """Holds them. All methods belong to the event loop's thread."""

    def __init__(self) -> None:
        self.doubted: AbstractSet[int] = frozenset()
        """The brokers for which answers are held now."""
        self.edition = 0
        """Counts up whenever an answer may have become another."""
        self.held_bytes = 0
        self.total = 0
        """Answers that were held since the start."""
        self._doubts: dict[int, _Doubt] = {}
        self._image = ClusterImage()
        self._led: asyncio.Task[frozenset[bytes | str]] | None = None
        """The look for the topics that doubted brokers lead, in this edition."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._to_release = 0
        self._is_releasing = False
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting)

    # What is heard of brokers

    def broken(self, broker_id: int) -> None:
        """Holds answers that name the broker, unless they were held for it before."""
        if self._is_closed or broker_id not in self._image.brokers:
            return
        loop = asyncio.get_running_loop()
        known = self._doubts.get(broker_id)
        if known is not None and not (known.is_reached and loop.time() >= known.began + STEADY_S):
            return
        timer = loop.call_later(HOLD_S, self._end, broker_id)
        self._doubts[broker_id] = _Doubt(loop.time(), timer)
        self._note_doubted()

    def reached(self, broker_id: int) -> None:
        """The broker lives: answers that name it are sent."""
        known = self._doubts.get(broker_id)
        if known is not None:
            known.is_reached = True
            self._end(broker_id)

    def image_changed(self, delta: Delta) -> None:
        """Looks at the held answers again."""
        self._image = image = delta.image
        for broker_id in [one for one in self._doubts if one not in image.brokers]:
            self._doubts.pop(broker_id).timer.cancel()
        if self.doubted:
            self._note_doubted()

    def close(self) -> None:
        """The broker stops: nothing is held any more."""
        self._is_closed = True
        for one in self._doubts.values():
            one.timer.cancel()
        self._doubts.clear()
        self._note_doubted()

    def _end(self, broker_id: int) -> None:
        known = self._doubts[broker_id]
        if known.is_held_for:
            known.is_held_for = False
            known.timer.cancel()
            self._note_doubted()

    def _note_doubted(self) -> None:
        self.doubted = frozenset(one for one, doubt in self._doubts.items() if doubt.is_held_for)
        self.edition += 1
        self._led = None
        self._to_release = len(self._waiting)
        if self._to_release and not self._is_releasing:
            self._is_releasing = True
            asyncio.get_running_loop().call_soon(self._release)

    # The answers

    async def led_topics(self) -> frozenset[bytes | str]:
        """Names and ids of the topics with a partition whose leader is a suspected broker."""
        if self._led is None:
            looking = with_pauses(_led_by(self._image, self.doubted))
            self._led = asyncio.get_running_loop().create_task(looking)
        return await asyncio.shield(self._led)

    async def hold(self, context: RequestContext, items: int, edition: int) -> bool:
        """Waits until the answer may be another than it was in ``edition``; False where it must not wait.

        ``items``: how many topics or groups the request names.
        """
        if edition != self.edition:
            return True
        memory: Memory | None = context.lane.memory if context.lane is not None else None
        count = REQUEST_BYTES + items * ITEM_BYTES
        if (
            not self.doubted
            or len(self._waiting) >= HELD_MAX
            or self.held_bytes + count > HELD_BYTES_MAX
            or (memory is not None and memory.total + count > memory.bytes_max >> 1)
        ):
            return False
        released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(released)
        self.total += 1
        self.held_bytes += count
        if memory is not None:
            memory.take(count)
        try:
            await context.turns.rest(released)
        finally:
            self.held_bytes -= count
            if memory is not None:
                memory.release(count)
        return True

    def _release(self) -> None:
        """Lets those go on that waited when something changed, some in each turn of the loop."""
        for _ in range(min(self._to_release, RELEASED_A_TURN)):
            self._to_release -= 1
            released = self._waiting.popleft()
            if not released.done():
                released.set_result(None)
        self._is_releasing = self._to_release > 0
        if self._is_releasing:
            asyncio.get_running_loop().call_soon(self._release)


def _led_by(image: ClusterImage, brokers: Iterable[int]) -> Generator[None, None, frozenset[bytes | str]]:
    """The names and ids of the topics of which any of ``brokers`` leads a partition; it pauses meanwhile."""
    leaders = frozenset(brokers)
    found: set[bytes | str] = set()
    count = 0
    for topic in image.topic_index.with_replicas_on(leaders):
        for some in slices_of(topic.partitions, PARTITIONS_A_PAUSE):
            count += len(some)
            if count > PARTITIONS_A_PAUSE:
                count = len(some)
                yield
            if any(one.leader in leaders for one in some):
                found |= {topic.name, topic.topic_id}
                break
    return frozenset(found)
