"""Limits the memory of all connections together.

It counts received bytes that were not handled yet (partial frames, delayed requests) and responses that
clients have not read. Above half of the limit, connections with more than the average stop reading; above the
limit, all with more than a small amount. One of the paused connections, the one that lacks the fewest bytes
of its frame, always continues to read: frames are completed one after another, whatever the limit is. If its
peer sends nothing meanwhile, the next connection takes its place.

Unread responses would fill the memory however little is received. While they use half of the limit, requests
with possibly large responses wait; others continue. If no memory becomes free for some seconds, connections
whose clients read almost nothing of large responses are closed.

Requests that were read from their connections and wait (for the disk, for validation in a thread) are counted
as well, even if their connection is closed. They complete by themselves; while they alone exceed the limit,
nothing is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import i64, mypyc_attr

if TYPE_CHECKING:
    import asyncio

EXEMPT_BYTES: Final = 32 * 1024
"""A connection with at most this many bytes is exempt from the limit: small requests are always handled."""
RECEIVE_BYTES_MAX: Final = 256 * 1024
"""The maximum number of bytes per receive of one connection."""
TICK_S: Final = 1.0
"""The time that the selected connection has to receive its next bytes."""
UNBOUNDED: Final = 1 << 62
PATIENCE_TICKS: Final = 3
"""The number of ticks for which a slow reader may block others that wait for memory."""
PROGRESS_BYTES: Final = 64 * 1024
"""The bytes that it must read per tick."""


@mypyc_attr(allow_interpreted_subclasses=True)
class MemoryWaiter:
    """A connection or a large request, which waits for the memory of a response."""

    def resume_frames(self) -> None:
        """There is memory for a large response again."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class MemoryHolder(MemoryWaiter):
    """The owner of an account: a connection."""

    def missing_bytes(self) -> i64:
        """The number of bytes that its partial frame lacks; 0 without a partial frame."""
        raise NotImplementedError

    def pause_reading(self) -> None:
        """Stops reading until :meth:`resume_reading`."""
        raise NotImplementedError

    def resume_reading(self) -> None:
        """May read again."""
        raise NotImplementedError

    def close(self, reason: str) -> None:
        """Closes the connection at once."""
        raise NotImplementedError


class MemoryAccount:
    """The memory of one connection, and its received and sent bytes."""

    def __init__(self, owner: MemoryHolder) -> None:
        self.owner = owner
        self.held_bytes: i64 = 0
        """The counted bytes."""
        self.bytes_in: i64 = 0
        self.stalls: i64 = 0
        """The number of times that it was selected to read and received nothing."""
        self.unsent_bytes: i64 = 0
        """The counted bytes that are unsent responses."""
        self.bytes_out: i64 = 0
        self.last_use: i64 = 0
        """The time of the last received or sent bytes, in units of :attr:`MemoryPool.uses`."""
        self.sent_before: i64 = 0
        """The bytes sent until the last tick in which others waited for memory."""
        self.slow_ticks: i64 = 0


class MemoryPool:
    """The limit for all connections of a broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_max: i64) -> None:
        self.loop = loop
        self.bytes_max: i64 = bytes_max
        self.total: i64 = 0
        """All counted bytes."""
        self.reserved: i64 = 0
        """The bytes of received requests that wait outside of their connections; part of the total."""
        self.unsent: i64 = 0
        """The bytes of responses that clients have not read; part of the total."""
        self.large_unsent: dict[MemoryAccount, None] = {}
        """Accounts with more than :data:`EXEMPT_BYTES` of them, in the order in which they exceeded it."""
        self.delayed: dict[MemoryWaiter, None] = {}
        """Connections whose next request waits for memory for its response, and large requests, in order."""
        self.holders: i64 = 0
        """The number of accounts with counted bytes."""
        self.waiting: dict[MemoryAccount, None] = {}
        """Paused accounts, in order."""
        self.selected: MemoryAccount | None = None
        """The account that reads whatever the limit is, until its frame is complete."""
        self.pauses: i64 = 0
        """The number of times that a connection was paused."""
        self.uses: i64 = 0
        """Incremented with every receive: a clock for the order of uses."""
        self._selected_bytes: i64 = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_reading_stopped(self) -> bool:
        """Whether no connection may read, because the reserved bytes exceed the limit."""
        return self.reserved > self.bytes_max

    @property
    def is_short(self) -> bool:
        """Whether the limit is exceeded: responses are then created only for clients that read them."""
        return self.total > self.bytes_max

    def can_respond(self, waiter: MemoryWaiter) -> bool:
        """Whether ``waiter`` may handle a request with a large response; else it is notified later."""
        if self.unsent <= self.bytes_max >> 1:
            return True
        self.delayed[waiter] = None
        self._arm()
        return False

    def stop_waiting(self, waiter: MemoryWaiter) -> None:
        """Cancels the notification of ``waiter``."""
        self.delayed.pop(waiter, None)

    def set_unsent(self, account: MemoryAccount, unsent: i64) -> None:
        """Sets the number of bytes of ``account`` that are unsent responses."""
        self.unsent += unsent - account.unsent_bytes
        account.unsent_bytes = unsent
        if unsent > EXEMPT_BYTES:
            if account not in self.large_unsent:
                self.large_unsent[account] = None
                account.sent_before = account.bytes_out
                account.slow_ticks = 0
        elif self.large_unsent:
            self.large_unsent.pop(account, None)
        if self.delayed and self.unsent <= self.bytes_max >> 1:
            waiting = list(self.delayed)
            self.delayed.clear()
            for one in waiting:
                # Each checks again: the first of them may use all free memory.
                one.resume_frames()

    def _close_slow_readers(self) -> None:
        """Closes connections that read almost nothing while others wait for memory."""
        for account in list(self.large_unsent):
            if account.bytes_out - account.sent_before >= PROGRESS_BYTES:
                account.slow_ticks = 0
            else:
                account.slow_ticks += 1
            account.sent_before = account.bytes_out
            if account.slow_ticks >= PATIENCE_TICKS:
                account.owner.close(
                    f"{account.unsent_bytes} bytes of responses are not read, and other connections wait "
                    "for memory"
                )

    def set_held(self, account: MemoryAccount, held: i64) -> None:
        """Sets the number of counted bytes of ``account``."""
        before = account.held_bytes
        account.held_bytes = held
        self.total += held - before
        if before == 0:
            self.holders += 1
        if held == 0:
            self.holders -= 1
        if held > before:
            if self.total > self.bytes_max >> 1:
                self._pause_if_above_average(account)
        elif self.waiting or self.selected is not None:
            if self.selected is account:
                # It has completed a frame: the next one is selected.
                self.selected = None
                if self.total > self.bytes_max >> 1:
                    self._pause_if_above_average(account)
            self._resume_paused()

    def reserve(self, count: i64) -> None:
        """Counts the ``count`` bytes of a request that waits outside of its connection."""
        self.reserved += count
        self.total += count

    def release(self, count: i64) -> None:
        """Releases reserved bytes."""
        self.reserved -= count
        self.total -= count
        if self.waiting:
            self._resume_paused()

    def pause(self, account: MemoryAccount) -> None:
        """Pauses ``account`` before a read; it is notified when it may read."""
        if account not in self.waiting:
            self._pause(account)

    def remove(self, account: MemoryAccount) -> None:
        """Removes the account of a closed connection."""
        self.waiting.pop(account, None)
        self.stop_waiting(account.owner)
        if self.selected is account:
            self.selected = None
        self.set_unsent(account, 0)
        if account.held_bytes > 0:
            self.set_held(account, 0)
        elif self.waiting:
            self._resume_paused()

    def _pause_if_above_average(self, account: MemoryAccount) -> None:
        if account in self.waiting or account is self.selected or account.held_bytes <= EXEMPT_BYTES:
            return
        if self.total > self.bytes_max or account.held_bytes * self.holders > self.total:
            self._pause(account)

    def _pause(self, account: MemoryAccount) -> None:
        self.pauses += 1
        self.waiting[account] = None
        account.owner.pause_reading()
        self._arm()
        if self.selected is None:
            self._select()

    def _resume(self, account: MemoryAccount) -> None:
        self.waiting.pop(account, None)
        account.owner.resume_reading()

    def _resume_paused(self) -> None:
        """Resumes connections for which there is memory."""
        if self.is_reading_stopped:
            return
        room: i64 = (self.bytes_max >> 1) - self.total
        for account in list(self.waiting):
            if account.held_bytes > EXEMPT_BYTES:
                if room < RECEIVE_BYTES_MAX:
                    continue
                room -= RECEIVE_BYTES_MAX
            self._resume(account)
        if self.selected is None and self.waiting:
            self._select()

    def _select(self) -> None:
        """Selects a connection to resume, unless requests that wait will free enough memory."""
        if self.is_reading_stopped or self.reserved > self.bytes_max >> 1:
            return
        best: MemoryAccount | None = None
        best_missing: i64 = 0
        for account in self.waiting:
            missing = account.owner.missing_bytes()
            if missing > 0 and (
                best is None
                or account.stalls < best.stalls
                or (account.stalls == best.stalls and missing < best_missing)
            ):
                best = account
                best_missing = missing
        if best is not None:
            self.selected = best
            self._selected_bytes = best.bytes_in
            self._resume(best)

    def _tick(self) -> None:
        self._timer = None
        selected = self.selected
        if selected is not None:
            if selected.bytes_in == self._selected_bytes:
                selected.stalls += 1
                self.selected = None
                if selected.held_bytes > EXEMPT_BYTES:
                    self._pause(selected)
            else:
                self._selected_bytes = selected.bytes_in
        if self.waiting:
            self._resume_paused()
        if self.delayed:
            self._close_slow_readers()
        if self.waiting or self.delayed or self.selected is not None:
            self._arm()

    def _arm(self) -> None:
        """Schedules the next tick, unless it is scheduled."""
        if self._timer is None:
            self._timer = self.loop.call_later(TICK_S, self._tick)

    def close(self) -> None:
        """Stops all calls."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
