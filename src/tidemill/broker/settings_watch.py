"""Settings that others wrote to the store: every broker reads them again when it is told that they changed.

Whoever changes settings of a topic, broker or group writes a numbered note of it. A broker that sees a gap in
the numbers or a note that it cannot read, or was without a session for a while, reads everything again:
brokers must not disagree about the settings of a topic.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tidemill.broker.broker import Broker
from tidemill.controller.watching import Watching
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.loading import group_names, load_settings
from tidemill.coordination.nodes import CONFIG_CHANGES, ConfigChangeNode, ConfigNode
from tidemill.coordination.port import Delete, Node, NoNode, Watch
from tidemill.model.errors import ErrorCode, KafkaError

log = logging.getLogger("tidemill.broker")

KINDS = ("topics", "brokers", "groups")
NOTES_KEPT = 100
"""Older notes are removed by the controller."""

Entity = tuple[str, str]


class SettingsWatch:
    """Keeps this broker's view of settings current."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._seen: int | None = None
        self._watching = Watching(broker.store, {CONFIG_CHANGES: self._changed})
        self._unreadable: dict[Entity, Watch | None] = {}
        """What could not be read, and is watched until it can; None: not watched yet."""

    def start(self) -> None:
        """Begins to watch; what was written since this broker read the store is read again."""
        self._watching.start()

    def read_all(self) -> None:
        """Everything is to be read again: notes may have been missed."""
        self._seen = None
        self._watching.want([CONFIG_CHANGES])

    def unreadable(self, kind: str, name: str) -> None:
        """Settings could not be read: they are read again once somebody has written them."""
        self._unreadable.setdefault((kind, name), None)
        self._watching.want([CONFIG_CHANGES])

    async def stop(self) -> None:
        """Watches no longer."""
        await self._watching.stopped()
        for watch in self._unreadable.values():
            if watch is not None:
                watch.cancel()

    async def _changed(self) -> None:
        store = self._broker.store
        notes = {_number(name): name for name in await store.children(CONFIG_CHANGES)}
        last = max(notes, default=-1)
        if self._seen is None or (notes and min(notes) > self._seen + 1):
            entities = await self._all_entities()
        else:
            paths = [f"{CONFIG_CHANGES}/{notes[number]}" for number in sorted(notes) if number > self._seen]
            changed = [_entity_of(node) for node in await store.get_many(paths)]
            entities = await self._all_entities() if None in changed else {}
            entities |= dict.fromkeys(entity for entity in changed if entity is not None)
        await self._watch_unreadable()
        entities |= dict.fromkeys(self._unreadable)
        await self._take(await self._load([entity for entity in entities if entity[0] in KINDS]))
        self._seen = last
        if self._broker.controller.is_active and len(notes) > NOTES_KEPT:
            await self._remove([notes[number] for number in sorted(notes)[:-NOTES_KEPT]])

    async def _load(self, entities: list[Entity]) -> dict[Entity, dict[str, str]]:
        """Their settings. What makes no sense is told of, and keeps no other from taking effect."""
        store = self._broker.store
        try:
            return await load_settings(store, entities)
        except NodeFormatError:
            settings: dict[Entity, dict[str, str]] = {}
            for entity in entities:
                try:
                    settings |= await load_settings(store, [entity])
                except NodeFormatError as problem:
                    log.error("settings stay as they were: %s", problem)
                    if entity not in self._unreadable:
                        self.unreadable(*entity)
            return settings

    async def _watch_unreadable(self) -> None:
        for entity, watch in list(self._unreadable.items()):
            if watch is None:
                path = ConfigNode.path(*entity)
                self._unreadable[entity] = await self._broker.store.watch(
                    path, lambda _: self._watching.want([CONFIG_CHANGES])
                )

    async def _all_entities(self) -> dict[Entity, None]:
        image = self._broker.metadata.image
        topics = (*image.topics, *self._broker.commands.topics_without_metadata())
        entities: dict[Entity, None] = {("topics", name): None for name in topics}
        entities |= {("brokers", name): None for name in (*image.broker_configs, "<default>")}
        # Of groups the store alone knows all.
        groups = (*image.group_configs, *await group_names(self._broker.store))
        entities |= {("groups", name): None for name in groups}
        return entities | {("brokers", str(self._broker.node_id)): None}

    async def _take(self, settings: Mapping[Entity, Mapping[str, str]]) -> None:
        mended = {entity: self._unreadable.pop(entity) for entity in settings if entity in self._unreadable}
        try:
            await self._hand_over(settings)
        except BaseException:
            # No note names them: without the watch they would not be read again.
            for entity, watch in mended.items():
                self._unreadable[entity] = watch
            raise
        for watch in mended.values():
            if watch is not None:
                watch.cancel()

    async def _hand_over(self, settings: Mapping[Entity, Mapping[str, str]]) -> None:
        controller, commands = self._broker.controller, self._broker.commands
        try:
            await controller.take_settings(settings)
        except KafkaError as problem:
            if problem.code != ErrorCode.NOT_CONTROLLER:
                raise
            await commands.take_settings(settings)
            return
        if commands.controller_epoch > controller.image.controller_epoch:
            # A later controller has sent commands: what this one announced was not carried out here.
            await commands.take_settings(settings)

    async def _remove(self, names: list[str]) -> None:
        for name in names:
            try:
                await self._broker.store.transact([Delete(f"{CONFIG_CHANGES}/{name}")])
            except NoNode:
                continue


def _number(name: str) -> int:
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdigit() else -1


def _entity_of(note: Node | None) -> Entity | None:
    """What a note says has changed; None where it makes no sense, or was removed before it was read."""
    if note is None:
        return None
    try:
        kind, _, name = ConfigChangeNode.decode(note.data).partition("/")
    except NodeFormatError as problem:
        log.error("all settings are read again: %s", problem)
        return None
    if kind in KINDS and (not name or "/" in name):  # Names of users and clients have more parts.
        log.error("all settings are read again: a note of changed settings names %s/%s", kind, name)
        return None
    return kind, ConfigNode.name(kind, name)
