"""Watches the registrations of brokers: a live broker may change its endpoints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tidemill.coordination.coordination_store import Event, EventKind, Store, Watch
from tidemill.coordination.nodes import BROKER_IDS


class BrokerModificationsHandler:
    """Watches the nodes of all registered brokers, readable or not.

    Source: Apache Kafka, ``BrokerModificationsHandler`` of ``KafkaController.scala``.
    """

    def __init__(
        self, store: Store, schedule: Callable[[str], None], changed: Callable[[], Awaitable[None]]
    ) -> None:
        """``schedule`` is called with BROKER_IDS to run :meth:`brokers_changed`, which calls ``changed``."""
        self._store = store
        self._schedule = schedule
        self._changed = changed
        self._watches: dict[str, Watch] = {}

    def stop(self) -> None:
        """Removes all watches."""
        for watch in self._watches.values():
            watch.cancel()
        self._watches.clear()

    async def brokers_changed(self) -> None:
        """Watches new registrations, then calls ``changed``. Raises StoreError and its errors."""
        names = set(await self._store.children(BROKER_IDS))
        for name in sorted(self._watches.keys() - names):
            self._watches.pop(name).cancel()
        for name in sorted(names - self._watches.keys()):
            self._watches[name] = await self._store.watch(f"{BROKER_IDS}/{name}", self._node_changed)
        await self._changed()

    def _node_changed(self, event: Event) -> None:
        if event.kind is EventKind.DATA_CHANGED:
            self._schedule(BROKER_IDS)
