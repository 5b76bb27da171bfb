"""Handles topics that administrators create, expand and delete by writing nodes, as Kafka's old tools do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidemill.controller.controller import KafkaController
from tidemill.controller.controller_context import admin_log, log_refused_deletions
from tidemill.controller.leader_election import plan_topic_elections
from tidemill.coordination.cluster_image import TOPIC, ClusterImage
from tidemill.coordination.cluster_image_loader import load_topics
from tidemill.coordination.coordination_store import Delete, Event, EventKind, StoreError, Watch
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import DELETE_TOPICS, TOPICS, DeleteTopicNode, TopicNode
from tidemill.coordination.topic_image import TopicImage
from tidemill.model.errors import ErrorCode
from tidemill.model.log_lines import in_lines

logger = logging.getLogger(__name__)

WATCHES_AT_ONCE = 200
"""The number of watches set at once. One by one they would keep a new controller busy for seconds."""

DELAY_S = 1.0
DELAYS_MAX = 5
"""New topics in the store are read within DELAYS_MAX times DELAY_S."""


class AdminNodeRequests:
    """Compares the topic nodes in the store with the image of the controller."""

    def __init__(self, controller: KafkaController, schedule: Callable[[str], None]) -> None:
        """``schedule`` is called with a path (TOPICS) when the handler of that path has to run again."""
        self._controller = controller
        self._schedule = schedule
        self._watches: dict[str, Watch] = {}
        self._touched: set[str] = set()
        self._unreadable_watches: dict[str, Watch] = {}
        """By the path of a node that could not be read."""
        self._delay_timer: asyncio.TimerHandle | None = None
        self._delay_count = 0

    def stop(self) -> None:
        """Removes all watches."""
        if self._delay_timer is not None:
            self._delay_timer.cancel()
            self._delay_timer = None
        for watch in self._watches.values():
            watch.cancel()
        for watch in self._unreadable_watches.values():
            watch.cancel()
        self._watches.clear()
        self._unreadable_watches.clear()
        self._touched.clear()

    async def topics_changed(self) -> None:
        """Applies new topics and added partitions. Raises StoreError, NOT_CONTROLLER."""
        if self._is_delayed():
            return
        controller = self._controller
        names = set(await controller.context.store.children(TOPICS))
        await self._watch(names)
        async with controller.context.change_lock():
            image = controller.image
            touched, self._touched = self._touched, set()
            requested = ((names - image.topics.keys()) | (names & touched)) - image.deleting.keys()
            if requested:
                try:
                    await self._apply_topics(image, sorted(requested))
                except StoreError:
                    self._touched |= touched
                    raise
            elif image.unreadable_of(TOPIC):
                controller.context.note_unreadable(TOPIC, {})
        await self._watch_unreadable()

    def _is_delayed(self) -> bool:
        """Whether the read is delayed because the controller itself is changing topics.

        Reading thousands of topics that the controller has just created would delay its clients.
        """
        if self._delay_timer is not None:
            return True
        if not self._controller.context.is_changing or self._delay_count == DELAYS_MAX:
            self._delay_count = 0
            return False
        self._delay_count += 1
        self._delay_timer = asyncio.get_running_loop().call_later(DELAY_S, self._run_delayed)
        return True

    def _run_delayed(self) -> None:
        self._delay_timer = None
        self._schedule(TOPICS)

    async def _apply_topics(self, image: ClusterImage, names: list[str]) -> None:
        controller = self._controller
        unreadable: dict[str, NodeFormatError] = {}
        found = await load_topics(
            controller.context.store, await self._changed_names(image, names), unreadable
        )
        for name in sorted(unreadable.keys() & image.topics.keys()):
            logger.error("%s Until then, topic %s is unchanged.", unreadable.pop(name), name)
        if image.unreadable_of(TOPIC).keys() & found.keys():
            self._schedule(DELETE_TOPICS)  # Some may have been marked for deletion meanwhile.
        fresh = [
            topic for name, topic in found.items() if _is_changed(image.topics.get(name), topic.node_version)
        ]
        controller.context.note_unreadable(TOPIC, unreadable)
        image = controller.image
        if not fresh:
            return
        for line in in_lines(topic.name for topic in fresh):
            admin_log.info("topics were written to the store: %s", line)
        only = ClusterImage(
            image.cluster_id,
            image.controller_id,
            image.controller_epoch,
            image.brokers,
            {topic.name: topic for topic in fresh},
        ).with_offline_of(image)
        known_ids = controller.context.known_ids([topic.name for topic in fresh])
        plans = plan_topic_elections(
            only,
            policy_of=controller.context.policies.of,
            stopping=controller.context.stopping(),
            known_ids=known_ids,
        )
        await controller.context.write_and_announce(plans, image.with_topics(only.topics.values()))

    async def _changed_names(self, image: ClusterImage, names: list[str]) -> list[str]:
        """The names whose nodes differ from the image. The controller wrote most nodes itself."""
        nodes = await self._controller.context.store.get_many([TopicNode.path(name) for name in names])
        return [
            name
            for name, node in zip(names, nodes, strict=True)
            if node is not None and _is_changed(image.topics.get(name), node.version)
        ]

    async def _watch(self, names: set[str]) -> None:
        store = self._controller.context.store
        fresh = sorted(names - self._watches.keys())
        for start in range(0, len(fresh), WATCHES_AT_ONCE):
            piece = fresh[start : start + WATCHES_AT_ONCE]
            made = await asyncio.gather(
                *(store.watch(TopicNode.path(name), self._node_changed) for name in piece),
                return_exceptions=True,
            )
            problem: BaseException | None = None
            for name, watch in zip(piece, made, strict=True):
                if isinstance(watch, BaseException):
                    problem = watch
                else:
                    self._watches[name] = watch
                    self._touched.add(name)
            if problem is not None:
                raise problem
        for name in self._watches.keys() - names:
            self._watches.pop(name).cancel()

    async def _watch_unreadable(self) -> None:
        """Watches the unreadable nodes of topics and their settings, to read them again after a repair."""
        requested = {problem.path for problem in self._controller.image.unreadable_of(TOPIC).values()}
        for path in sorted(self._unreadable_watches.keys() - requested):
            self._unreadable_watches.pop(path).cancel()
        for path in sorted(requested):
            if path not in self._unreadable_watches:
                self._unreadable_watches[path] = await self._controller.context.store.watch(
                    path, lambda _: self._schedule(TOPICS)
                )
                self._schedule(TOPICS)  # The node may have been repaired before the watch was set.

    def _node_changed(self, event: Event) -> None:
        if event.kind in (EventKind.CREATED, EventKind.DATA_CHANGED):
            self._touched.add(event.path.removeprefix(f"{TOPICS}/"))
            self._schedule(TOPICS)

    async def deletion_marks_changed(self) -> None:
        """Deletes the topics that are marked for deletion. Raises StoreError, NOT_CONTROLLER."""
        controller = self._controller
        async with controller.context.change_lock():
            # The controller created the marks of deletions in progress itself.
            marked = await controller.context.store.children(DELETE_TOPICS)
            new = [name for name in marked if name not in controller.image.deleting]
            known = [name for name in new if name in controller.image.topics]
            # A remaining mark would schedule like a deletion in progress.
            is_refused = not controller.context.config().bool("delete.topic.enable")
            for name in new:
                # The deletion of an unreadable topic waits.
                if is_refused or (name not in known and (TOPIC, name) not in controller.image.unreadable):
                    await controller.context.write_operations([Delete(DeleteTopicNode.path(name))])
        if known and is_refused:
            log_refused_deletions(known)
        elif known:
            for line in in_lines(known):
                admin_log.info("topics were marked for deletion in the store: %s", line)
            for outcome in await controller.admin_manager.delete_topics(known, are_marked=True):
                if outcome.error is None:
                    continue
                if outcome.error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    logger.info("%s is no longer marked for deletion: %s", outcome.name, outcome.error)
                else:
                    logger.error("%s could not be deleted: %s", outcome.name, outcome.error)


def _is_changed(known: TopicImage | None, version: int) -> bool:
    """Whether a topic is new or was written by another client."""
    return known is None or known.node_version != version
