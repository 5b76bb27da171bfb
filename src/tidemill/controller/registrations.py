"""Watching what brokers say of themselves: one may get another address without registering anew."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tidemill.coordination.nodes import BROKER_IDS
from tidemill.coordination.port import Event, EventKind, Store, Watch


class Registrations:
    """Watches the nodes of all brokers that are registered, whether these can be read or not.

    Source: Apache Kafka, ``BrokerModificationsHandler`` of ``KafkaController.scala``.
    """

    def __init__(
        self, store: Store, look: Callable[[str], None], changed: Callable[[], Awaitable[None]]
    ) -> None:
        """``look`` is called with BROKER_IDS when :meth:`brokers_changed` is due; that calls ``changed``."""
        self._store = store
        self._look = look
        self._changed = changed
        self._watches: dict[str, Watch] = {}

    def stop(self) -> None:
        """Watches nobody any more."""
        for watch in self._watches.values():
            watch.cancel()
        self._watches.clear()

    async def brokers_changed(self) -> None:
        """Watches those that came, and has all looked at. Raises StoreError, and what ``changed`` raises."""
        names = set(await self._store.children(BROKER_IDS))
        for name in sorted(self._watches.keys() - names):
            self._watches.pop(name).cancel()
        for name in sorted(names - self._watches.keys()):
            self._watches[name] = await self._store.watch(f"{BROKER_IDS}/{name}", self._happened)
        await self._changed()

    def _happened(self, event: Event) -> None:
        if event.kind is EventKind.DATA_CHANGED:
            self._look(BROKER_IDS)
