"""Applies settings of topics, brokers and groups that were written to the store.

Each change of settings creates a numbered notification below ``/config/changes``, and every broker then reads
the settings that it names. A broker reads all settings after a gap in the numbers, an unreadable notification
or a lost session: brokers must not disagree about the settings of a topic.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

from tidemill.broker.apply_leader_and_isr import LeaderAndIsrApplier
from tidemill.broker.controller_request_handler import ControllerRequestHandler
from tidemill.broker.metadata_cache import MetadataCache
from tidemill.controller.controller import KafkaController
from tidemill.controller.node_change_handlers import NodeChangeHandlers
from tidemill.coordination.cluster_image_loader import group_names, load_settings
from tidemill.coordination.coordination_store import Delete, Node, NoNode, Store, Watch
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import (
    CONFIG_CHANGES,
    DEFAULT_ENTITY,
    ConfigChangeNode,
    ConfigNode,
    ConfigResource,
)
from tidemill.model.errors import ErrorCode, KafkaError

logger = logging.getLogger("tidemill.broker")

KINDS = ("topics", "brokers", "groups")
NOTIFICATIONS_KEPT = 100
"""The newest notifications. The controller deletes older ones."""


class DynamicConfigManager:
    """Processes the notifications of changed settings."""

    def __init__(
        self,
        node_id: int,
        store: Store,
        metadata_cache: MetadataCache,
        controller: KafkaController,
        applier: LeaderAndIsrApplier,
        requests: ControllerRequestHandler,
    ) -> None:
        self._node_id = node_id
        self._store = store
        self._metadata_cache = metadata_cache
        self._controller = controller
        self._applier = applier
        self._requests = requests
        self._last_processed: int | None = None
        self._change_handlers = NodeChangeHandlers(store, {CONFIG_CHANGES: self._process_notifications})
        self._unreadable: dict[ConfigResource, Watch | None] = {}
        """The unreadable settings, watched until they are readable; None: not watched yet."""

    def start(self) -> None:
        """Starts to watch. Reads the settings that were written since this broker read the store."""
        self._change_handlers.start()

    def read_all(self) -> None:
        """Reads all settings again, as notifications may have been missed."""
        self._last_processed = None
        self._change_handlers.schedule([CONFIG_CHANGES])

    def watch_unreadable(self, resource: ConfigResource) -> None:
        """Watches settings that could not be read, and reads them again after they were written."""
        self._unreadable.setdefault(resource, None)
        self._change_handlers.schedule([CONFIG_CHANGES])

    async def stop(self) -> None:
        """Stops watching."""
        await self._change_handlers.stopped()
        for watch in self._unreadable.values():
            if watch is not None:
                watch.cancel()

    async def _process_notifications(self) -> None:
        notifications = {_number(name): name for name in await self._store.children(CONFIG_CHANGES)}
        last = max(notifications, default=-1)
        if self._last_processed is None or (notifications and min(notifications) > self._last_processed + 1):
            resources = await self._all_resources()
        else:
            paths = [
                f"{CONFIG_CHANGES}/{notifications[number]}"
                for number in sorted(notifications)
                if number > self._last_processed
            ]
            changed = [_resource_of(node) for node in await self._store.get_many(paths)]
            resources = await self._all_resources() if None in changed else {}
            resources |= dict.fromkeys(resource for resource in changed if resource is not None)
        await self._watch_unreadable()
        resources |= dict.fromkeys(self._unreadable)
        await self._apply(await self._load([resource for resource in resources if resource.kind in KINDS]))
        self._last_processed = last
        if self._controller.is_active and len(notifications) > NOTIFICATIONS_KEPT:
            await self._remove_notifications(
                [notifications[number] for number in sorted(notifications)[:-NOTIFICATIONS_KEPT]]
            )

    async def _load(self, resources: list[ConfigResource]) -> dict[ConfigResource, dict[str, str]]:
        """Reads settings. Unreadable settings are logged and left out."""
        try:
            return await load_settings(self._store, resources)
        except NodeFormatError:
            settings: dict[ConfigResource, dict[str, str]] = {}
            for resource in resources:
                try:
                    settings |= await load_settings(self._store, [resource])
                except NodeFormatError as problem:
                    logger.error("the former settings stay in effect: %s", problem)
                    if resource not in self._unreadable:
                        self.watch_unreadable(resource)
            return settings

    async def _watch_unreadable(self) -> None:
        for resource, watch in list(self._unreadable.items()):
            if watch is None:
                path = ConfigNode.path(*resource)
                self._unreadable[resource] = await self._store.watch(
                    path, lambda _: self._change_handlers.schedule([CONFIG_CHANGES])
                )

    async def _all_resources(self) -> dict[ConfigResource, None]:
        image = self._metadata_cache.image
        topics = (*image.topics, *self._requests.topics_without_metadata())
        resources: dict[ConfigResource, None] = {ConfigResource("topics", name): None for name in topics}
        resources |= {
            ConfigResource("brokers", name): None for name in (*image.broker_configs, DEFAULT_ENTITY)
        }
        # Only the store has the names of all groups with settings.
        groups = (*image.group_configs, *await group_names(self._store))
        resources |= {ConfigResource("groups", name): None for name in groups}
        return resources | {ConfigResource("brokers", str(self._node_id)): None}

    async def _apply(self, settings: Mapping[ConfigResource, Mapping[str, str]]) -> None:
        readable_again = {
            resource: self._unreadable.pop(resource) for resource in settings if resource in self._unreadable
        }
        try:
            await self._apply_settings(settings)
        except BaseException:
            # No notification names them: without the watch they would not be read again.
            for resource, watch in readable_again.items():
                self._unreadable[resource] = watch
            raise
        for watch in readable_again.values():
            if watch is not None:
                watch.cancel()

    async def _apply_settings(self, settings: Mapping[ConfigResource, Mapping[str, str]]) -> None:
        try:
            await self._controller.context.apply_stored_settings(settings)
        except KafkaError as problem:
            if problem.code != ErrorCode.NOT_CONTROLLER:
                raise
            await self._requests.apply_settings(settings)
            return
        if self._applier.controller_epoch > self._controller.image.controller_epoch:
            # This broker has applied requests of a later controller, and has ignored the change of this one.
            await self._requests.apply_settings(settings)

    async def _remove_notifications(self, names: list[str]) -> None:
        for name in names:
            with contextlib.suppress(NoNode):
                await self._store.transact([Delete(f"{CONFIG_CHANGES}/{name}")])


def _number(name: str) -> int:
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdigit() else -1


def _resource_of(notification: Node | None) -> ConfigResource | None:
    """Returns the resource in a notification; None if it is unreadable or deleted."""
    if notification is None:
        return None
    try:
        kind, _, name = ConfigChangeNode.decode(notification.data).partition("/")
    except NodeFormatError as problem:
        logger.error("all settings are read again: %s", problem)
        return None
    if kind in KINDS and (not name or "/" in name):  # Names of users and clients have more parts.
        logger.error(
            "all settings are read again: a notification of changed settings names %s/%s", kind, name
        )
        return None
    return ConfigResource(kind, ConfigNode.name(kind, name))
