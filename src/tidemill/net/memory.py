"""What all connections together hold in memory, and which of them may read on when that is much.

Counted are bytes that were received and not yet handled (partial frames, requests held back) and replies
that their readers did not take. From half of the bound on, connections that hold more than the average
stop reading; from the whole bound on, all that hold more than a little. One of those that stopped, which
misses the least of its frame, always goes on: so frames become whole one after the other, whatever the
bound is. A peer that sends nothing meanwhile loses that place to the next.

Replies that their readers do not take would fill the memory however little is received. While they hold half
of the bound, requests whose replies may be large wait, until there is room; small ones go on. When there is
none for some seconds, connections whose readers take next to nothing of large replies are closed.

Requests that were taken from their connections and wait (for the disk, for a check in a thread) are counted
as well, also when their connection is gone. They end by themselves; until then nothing is read when they
alone fill the bound.
"""

from __future__ import annotations

from typing import Any, Final

from mypy_extensions import i64, mypyc_attr

FREE_BYTES: Final = 32 * 1024
"""A connection that holds no more reads on in any case, so that small requests always come through."""
RECEIVE_BYTES: Final = 256 * 1024
"""What one connection takes in at a time at most."""
TICK_S: Final = 1.0
"""How long the one that may go on has for its next bytes."""
UNBOUNDED: Final = 1 << 62
PATIENCE_TICKS: Final = 3
"""So long a reader of a large reply may take next to nothing while others wait for its memory."""
PROGRESS_BYTES: Final = 64 * 1024
"""What it must take in a tick."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Holder:
    """A connection, as far as it holds memory."""

    def __init__(self) -> None:
        self.held_bytes: i64 = 0
        """What is counted for it."""
        self.paused = False
        """It may not read now."""
        self.bytes_in: i64 = 0
        self.stalls: i64 = 0
        """How often it was let go on and sent nothing."""
        self.unsent_bytes: i64 = 0
        """Of what is counted for it: replies that are not sent."""
        self.bytes_out: i64 = 0
        self.sent_before: i64 = 0
        """What was sent up to the last tick in which others waited for memory."""
        self.slow_ticks: i64 = 0

    def missing_bytes(self) -> i64:
        """What its partial frame still misses; 0 when it has none."""
        raise NotImplementedError

    def pause_reading(self) -> None:
        """Reads no more, until :meth:`resume_reading`."""
        raise NotImplementedError

    def resume_reading(self) -> None:
        """May read again."""
        raise NotImplementedError

    def resume_frames(self) -> None:
        """There is room for a large reply again."""
        raise NotImplementedError

    def close(self, reason: str) -> None:
        """Ends the connection at once."""
        raise NotImplementedError


class Memory:
    """The bound for all connections of a broker."""

    def __init__(self, loop: Any, bytes_max: i64) -> None:
        self.loop = loop
        self.bytes_max: i64 = bytes_max
        self.total: i64 = 0
        """Bytes held, all in all."""
        self.taken: i64 = 0
        """Of these: bytes of requests that wait outside of their connections."""
        self.full = False
        """Nobody may read."""
        self.unsent: i64 = 0
        """Of the total: bytes of replies that their readers did not take yet."""
        self.senders: dict[Holder, None] = {}
        """Who holds more than a little of these."""
        self.held_up: dict[Holder, None] = {}
        """Whose next request waits for memory for its reply, in the order in which they came."""
        self.holders: i64 = 0
        self.waiting: dict[Holder, None] = {}
        self.runner: Holder | None = None
        self.pauses: i64 = 0
        """How often a connection was told to stop reading."""
        self.uses: i64 = 0
        """Counts up with every receive: a clock for what was used before what."""
        self._runner_bytes: i64 = 0
        self._timer: Any = None

    @property
    def is_short(self) -> bool:
        """Whether the bound is reached: replies are then made only for who takes them."""
        return self.total > self.bytes_max

    def may_answer(self, holder: Holder) -> bool:
        """Whether ``holder`` may take a request with a large reply; else it is told when to look again."""
        if self.unsent <= self.bytes_max >> 1:
            return True
        self.held_up[holder] = None
        if self._timer is None:
            self._timer = self.loop.call_later(TICK_S, self._tick)
        return False

    def note_unsent(self, holder: Holder, unsent: i64) -> None:
        """So many bytes of what ``holder`` holds are replies."""
        self.unsent += unsent - holder.unsent_bytes
        holder.unsent_bytes = unsent
        if unsent > FREE_BYTES:
            if holder not in self.senders:
                self.senders[holder] = None
                holder.sent_before = holder.bytes_out
                holder.slow_ticks = 0
        elif self.senders:
            self.senders.pop(holder, None)
        if self.held_up and self.unsent <= self.bytes_max >> 1:
            waiting = list(self.held_up)
            self.held_up.clear()
            for one in waiting:
                # Each looks again by itself: the first of them may take what room there is.
                one.resume_frames()

    def _close_slow_readers(self) -> None:
        """Closes connections that read almost nothing while others wait for memory."""
        for holder in list(self.senders):
            if holder.bytes_out - holder.sent_before >= PROGRESS_BYTES:
                holder.slow_ticks = 0
            else:
                holder.slow_ticks += 1
            holder.sent_before = holder.bytes_out
            if holder.slow_ticks >= PATIENCE_TICKS:
                holder.close(
                    f"{holder.unsent_bytes} bytes of replies are not taken, and others wait for their memory"
                )

    def change(self, holder: Holder, held: i64) -> None:
        """``holder`` holds so many bytes now."""
        before = holder.held_bytes
        holder.held_bytes = held
        self.total += held - before
        if before == 0:
            self.holders += 1
        if held == 0:
            self.holders -= 1
        if held > before:
            if self.total > self.bytes_max >> 1:
                self._press(holder)
        elif self.waiting or self.runner is not None:
            if self.runner is holder:
                # It has got one frame through: the next one's turn.
                self.runner = None
                if self.total > self.bytes_max >> 1:
                    self._press(holder)
            self._relieve()

    def take(self, count: i64) -> None:
        """A request of so many bytes waits outside of its connection now."""
        self.taken += count
        self.total += count
        self.full = self.taken > self.bytes_max

    def release(self, count: i64) -> None:
        """It waits no longer."""
        self.taken -= count
        self.total -= count
        self.full = self.taken > self.bytes_max
        if self.waiting:
            self._relieve()

    def hold_up(self, holder: Holder) -> None:
        """``holder`` was about to read, and must not: it is told when it may."""
        if not holder.paused:
            self._pause(holder)

    def forget(self, holder: Holder) -> None:
        """The connection is gone."""
        self.waiting.pop(holder, None)
        self.held_up.pop(holder, None)
        holder.paused = False
        if self.runner is holder:
            self.runner = None
        self.note_unsent(holder, 0)
        if holder.held_bytes > 0:
            self.change(holder, 0)
        elif self.waiting:
            self._relieve()

    def _press(self, holder: Holder) -> None:
        if holder.paused or holder is self.runner or holder.held_bytes <= FREE_BYTES:
            return
        if self.total > self.bytes_max or holder.held_bytes * self.holders > self.total:
            self._pause(holder)

    def _pause(self, holder: Holder) -> None:
        holder.paused = True
        self.pauses += 1
        self.waiting[holder] = None
        holder.pause_reading()
        if self._timer is None:
            self._timer = self.loop.call_later(TICK_S, self._tick)
        if self.runner is None:
            self._choose()

    def _resume(self, holder: Holder) -> None:
        self.waiting.pop(holder, None)
        holder.paused = False
        holder.resume_reading()

    def _relieve(self) -> None:
        """Lets those go on for whom there is room again."""
        if self.full:
            return
        room: i64 = (self.bytes_max >> 1) - self.total
        for holder in list(self.waiting):
            if holder.held_bytes > FREE_BYTES:
                if room < RECEIVE_BYTES:
                    continue
                room -= RECEIVE_BYTES
            self._resume(holder)
        if self.runner is None and self.waiting:
            self._choose()

    def _choose(self) -> None:
        """Lets one go on, unless what was taken elsewhere frees enough when it ends."""
        if self.full or self.taken > self.bytes_max >> 1:
            return
        best: Holder | None = None
        best_missing: i64 = 0
        for holder in self.waiting:
            missing = holder.missing_bytes()
            if missing > 0 and (
                best is None
                or holder.stalls < best.stalls
                or (holder.stalls == best.stalls and missing < best_missing)
            ):
                best = holder
                best_missing = missing
        if best is not None:
            self.runner = best
            self._runner_bytes = best.bytes_in
            self._resume(best)

    def _tick(self) -> None:
        self._timer = None
        runner = self.runner
        if runner is not None:
            if runner.bytes_in == self._runner_bytes:
                runner.stalls += 1
                self.runner = None
                if runner.held_bytes > FREE_BYTES:
                    self._pause(runner)
            else:
                self._runner_bytes = runner.bytes_in
        if self.waiting:
            self._relieve()
        if self.held_up:
            self._close_slow_readers()
        if self._timer is None and (self.waiting or self.held_up or self.runner is not None):
            self._timer = self.loop.call_later(TICK_S, self._tick)

    def close(self) -> None:
        """Calls nobody any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
