"""The memory of member ids that clients have received, and have not joined with yet."""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Final

from tidemill.coordinator_runtime.timers import ShardTimerKey
from tidemill.groups.coordinator_effects import TimerKey

PENDING_JOINS_BYTES_MAX: Final = 64 * 1024 * 1024
"""Enough for 25,000 members that join at the same time, each in a group of its own."""
PENDING_JOIN_BYTES: Final = 2_048
"""The size of a new group with one such id and its timer, without the group id and the member id."""


class PendingJoins:
    """The timers of the ids, of all shards, oldest first.

    A client rejoins with its id at once. An id is valid until the session timeout, half an hour at most, so
    that without a limit requests for ids could exhaust memory.
    """

    def __init__(self) -> None:
        self.bytes_max = PENDING_JOINS_BYTES_MAX
        self.bytes_held = 0
        self._sizes: OrderedDict[ShardTimerKey, int] = OrderedDict()

    def add(self, shard: int, timer: TimerKey) -> None:
        """Adds an id, by its timer and the number of its shard."""
        key = ShardTimerKey(shard, timer)
        self.discard(key)
        size = PENDING_JOIN_BYTES + sys.getsizeof(timer.group_id) + sys.getsizeof(timer.member_id)
        self._sizes[key] = size
        self.bytes_held += size

    def discard(self, key: ShardTimerKey) -> None:
        """Removes an id whose member has joined or left, or whose timer has fired; ignores other timers."""
        self.bytes_held -= self._sizes.pop(key, 0)

    def oldest_over_limit(self) -> ShardTimerKey | None:
        """Returns the timer of the oldest id if the ids use too much memory."""
        return next(iter(self._sizes)) if self.bytes_held > self.bytes_max else None
