"""Watches that outlive connections and sessions.

While the connection lives, ZooKeeper reports each change once. The reported changes of each node are counted.
After a disconnect, the node's state is compared with these counts: another creation id, version or children's
version shows the missed changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from kazoo.protocol.serialization import Exists

from tidemill.coordination.coordination_store import Event, EventKind, Watch, Watcher
from tidemill.coordination.zookeeper_calls import AddWatch, Calls, RemoveWatches
from tidemill.coordination.zookeeper_session import Session

logger = logging.getLogger("tidemill.zookeeper")

_KINDS = {
    1: EventKind.CREATED,
    2: EventKind.DELETED,
    3: EventKind.DATA_CHANGED,
    4: EventKind.CHILDREN_CHANGED,
}
_UNKNOWN_CREATION_ID = 0
"""Takes the place of a creation id where the server (before 3.9) does not report the transaction that created
the node."""


class Seen(NamedTuple):
    """The state of a node as its watchers know it."""

    creation_id: int
    version: int
    children_version: int


class _Watched:
    """A path with a watch in ZooKeeper, and its watchers."""

    __slots__ = ("arming", "seen", "watchers")

    def __init__(self) -> None:
        self.arming = 0
        """Pending calls that will add a watcher."""
        self.seen: Seen | None = None
        self.watchers: list[_ZooKeeperWatch] = []


class _ZooKeeperWatch(Watch):
    def __init__(self, watches: Watches, path: str, watcher: Watcher) -> None:
        self._watches = watches
        self.path = path
        self.watcher: Watcher | None = watcher

    def cancel(self) -> None:
        if self.watcher is not None:
            self.watcher = None
            self._watches.remove(self)


class Watches:
    """All watches of a store. ``full`` maps the store's paths to ZooKeeper's."""

    def __init__(self, calls: Calls, session: Session, full: Callable[[str], str]) -> None:
        self._calls = calls
        self._session = session
        self._full = full
        self._watched: dict[str, _Watched] = {}
        self._held: dict[Event, None] = {}
        """Events that arrived before the session was usable."""

    async def add(self, path: str, watcher: Watcher) -> Watch:
        """Sets a watch; raises kazoo's errors unchanged."""
        watch = _ZooKeeperWatch(self, path, watcher)
        watched = self._watched.setdefault(path, _Watched())
        watched.arming += 1
        try:
            armed = self._calls.submit(AddWatch(self._full(path)), lambda _: self._activate(watch))
            checked = self._calls.submit(
                Exists(self._full(path), None), lambda stat: self._record_state(path, stat)
            )
            await armed
            await checked
        except BaseException:
            watch.cancel()
            raise
        finally:
            watched.arming -= 1
            self._end_unused(path)
        return watch

    def _activate(self, watch: _ZooKeeperWatch) -> None:
        watched = self._watched.get(watch.path)
        if watch.watcher is not None and watched is not None:
            watched.watchers.append(watch)

    def _record_state(self, path: str, stat: Any) -> None:
        """Records the current state; later events are counted from it."""
        watched = self._watched.get(path)
        if watched is not None:
            watched.seen = None if stat is None else Seen(stat.czxid, stat.version, stat.cversion)

    def remove(self, watch: _ZooKeeperWatch) -> None:
        """Removes a watch; removing a path's last watch also removes ZooKeeper's."""
        watched = self._watched.get(watch.path)
        if watched is not None and watch in watched.watchers:
            watched.watchers.remove(watch)
            self._end_unused(watch.path)

    def _end_unused(self, path: str) -> None:
        watched = self._watched.get(path)
        if watched is None or watched.watchers or watched.arming:
            return
        del self._watched[path]
        if self._session.is_connected:
            self._calls.submit_internal(RemoveWatches(self._full(path)))

    def clear(self) -> None:
        """Removes all watches; ZooKeeper removes its own with the session."""
        self._watched.clear()
        self._held.clear()

    # Events

    def event(self, path: str, number: int, transaction_id: int) -> None:
        """Handles an event at ``path``; ``number`` is ZooKeeper's event type."""
        watched = self._watched.get(path)
        kind = _KINDS.get(number)
        if watched is None or kind is None:
            return
        watched.seen = after(watched.seen, kind, max(transaction_id, _UNKNOWN_CREATION_ID))
        if kind is EventKind.CREATED and transaction_id <= 0:
            self._calls.submit_internal(
                Exists(self._full(path), None), lambda stat: self._record_state(path, stat)
            )
        if self._session.is_usable:
            self._deliver(Event(kind, path))
        else:
            self._held[Event(kind, path)] = None

    def _deliver(self, event: Event) -> None:
        watched = self._watched.get(event.path)
        for watch in list(watched.watchers) if watched is not None else ():
            if watch.watcher is None:
                continue
            try:
                watch.watcher(event)
            except Exception:
                logger.exception("A watcher of %s failed on the event %r.", event.path, event.kind.value)

    def restore(self) -> None:
        """On a new connection: sets all watches, and checks for missed changes."""
        for path in list(self._watched):
            self._calls.submit_internal(AddWatch(self._full(path)))
            self._calls.submit_internal(Exists(self._full(path), None), self._comparison(path))

    def _comparison(self, path: str) -> Callable[[Any], None]:
        def compare(stat: Any) -> None:
            watched = self._watched.get(path)
            if watched is not None:
                before = watched.seen
                self._record_state(path, stat)
                for kind in missed(before, watched.seen):
                    self._held[Event(kind, path)] = None

        return compare

    def deliver_held(self) -> None:
        """Delivers the events that were held, once the session is usable."""
        events, self._held = self._held, {}
        for event in events:
            self._deliver(event)


def missed(before: Seen | None, now: Seen | None) -> list[EventKind]:
    """The visible changes of a node between two states."""
    if now is None:
        return [] if before is None else [EventKind.DELETED]
    if before is None:
        return [EventKind.CREATED]
    if before.creation_id != now.creation_id:
        return [EventKind.DELETED, EventKind.CREATED]
    kinds = []
    if before.version != now.version:
        kinds.append(EventKind.DATA_CHANGED)
    if before.children_version != now.children_version:
        kinds.append(EventKind.CHILDREN_CHANGED)
    return kinds


def after(seen: Seen | None, kind: EventKind, transaction_id: int) -> Seen | None:
    """The known state of a node after an event was reported."""
    if kind is EventKind.CREATED:
        return Seen(transaction_id, 0, 0)
    if kind is EventKind.DELETED or seen is None:
        return None
    if kind is EventKind.DATA_CHANGED:
        return seen._replace(version=seen.version + 1)
    return seen._replace(children_version=seen.children_version + 1)
