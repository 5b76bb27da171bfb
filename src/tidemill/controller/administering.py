"""Topics that administrators make, grow and delete by writing nodes, as Apache Kafka's old tools do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tidemill.controller.elections import plan_takeover
from tidemill.controller.office import admin_log, log_refused_deletions
from tidemill.controller.shell import Controller
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.image import TOPIC, ClusterImage, TopicImage
from tidemill.coordination.loading import load_topics
from tidemill.coordination.nodes import DELETE_TOPICS, TOPICS, DeleteTopicNode, TopicNode
from tidemill.coordination.port import Delete, Event, EventKind, StoreError, Watch
from tidemill.model.errors import ErrorCode
from tidemill.model.log_lines import in_lines

logger = logging.getLogger(__name__)

WATCHES_TOGETHER = 200
"""So many watches are set at once: one after the other they would keep a new controller busy for seconds."""

LATER_S = 1.0
PUT_OFF_MAX = 5
"""An administrator's topics are seen within so many times LATER_S, whatever else happens."""


class Administering:
    """Compares the nodes of topics with what the controller knows."""

    def __init__(self, controller: Controller, look: Callable[[str], None]) -> None:
        """``look`` is called with the path (TOPICS) at which :meth:`topics_changed` has to look again."""
        self._controller = controller
        self._look = look
        self._watches: dict[str, Watch] = {}
        self._touched: set[str] = set()
        self._mending: dict[str, Watch] = {}
        """By the path of a node that could not be read."""
        self._later: asyncio.TimerHandle | None = None
        self._put_off = 0

    def stop(self) -> None:
        """Watches no topic any more."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        for watch in self._watches.values():
            watch.cancel()
        for watch in self._mending.values():
            watch.cancel()
        self._watches.clear()
        self._mending.clear()
        self._touched.clear()

    async def topics_changed(self) -> None:
        """Takes over new topics, and partitions that were added. Raises StoreError, NOT_CONTROLLER."""
        if self._is_put_off():
            return
        controller = self._controller
        names = set(await controller.store.children(TOPICS))
        await self._watch(names)
        async with controller.changing():
            image = controller.image
            touched, self._touched = self._touched, set()
            wanted = ((names - image.topics.keys()) | (names & touched)) - image.deleting.keys()
            if wanted:
                try:
                    await self._take(image, sorted(wanted))
                except StoreError:
                    self._touched |= touched
                    raise
            elif image.unreadable_of(TOPIC):
                controller.note_unreadable(TOPIC, {})
        await self._watch_unreadable()

    def _is_put_off(self) -> bool:
        """Whether the look comes a little later: the controller itself is at work, and knows what it writes.

        A look at thousands of topics that it has just made would hold up those who wait for them.
        """
        if self._later is not None:
            return True
        if not self._controller.is_changing or self._put_off == PUT_OFF_MAX:
            self._put_off = 0
            return False
        self._put_off += 1
        self._later = asyncio.get_running_loop().call_later(LATER_S, self._look_again)
        return True

    def _look_again(self) -> None:
        self._later = None
        self._look(TOPICS)

    async def _take(self, image: ClusterImage, names: list[str]) -> None:
        controller = self._controller
        unreadable: dict[str, NodeFormatError] = {}
        found = await load_topics(controller.store, await self._written(image, names), unreadable)
        for name in sorted(unreadable.keys() & image.topics.keys()):
            logger.error("%s Until then topic %s stays as it was.", unreadable.pop(name), name)
        if image.unreadable_of(TOPIC).keys() & found.keys():
            self._look(DELETE_TOPICS)  # Some may have been marked meanwhile.
        fresh = [
            topic for name, topic in found.items() if _is_news(image.topics.get(name), topic.node_version)
        ]
        controller.note_unreadable(TOPIC, unreadable)
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
        known_ids = controller.known_ids([topic.name for topic in fresh])
        plans = plan_takeover(
            only, policy_of=controller.policies.of, stopping=controller.stopping(), known_ids=known_ids
        )
        await controller.change(plans, image.with_topics(only.topics.values()))

    async def _written(self, image: ClusterImage, names: list[str]) -> list[str]:
        """Those whose nodes are not what the controller knows: that of most is, it wrote them itself."""
        nodes = await self._controller.store.get_many([TopicNode.path(name) for name in names])
        return [
            name
            for name, node in zip(names, nodes, strict=True)
            if node is not None and _is_news(image.topics.get(name), node.version)
        ]

    async def _watch(self, names: set[str]) -> None:
        store = self._controller.store
        fresh = sorted(names - self._watches.keys())
        for start in range(0, len(fresh), WATCHES_TOGETHER):
            piece = fresh[start : start + WATCHES_TOGETHER]
            made = await asyncio.gather(
                *(store.watch(TopicNode.path(name), self._happened) for name in piece), return_exceptions=True
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
        """Watches the nodes below topics that cannot be read, or their settings: for the day they can."""
        wanted = {problem.path for problem in self._controller.image.unreadable_of(TOPIC).values()}
        for path in sorted(self._mending.keys() - wanted):
            self._mending.pop(path).cancel()
        for path in sorted(wanted):
            if path not in self._mending:
                self._mending[path] = await self._controller.store.watch(path, lambda _: self._look(TOPICS))
                self._look(TOPICS)  # It may have been mended just before.

    def _happened(self, event: Event) -> None:
        if event.kind in (EventKind.CREATED, EventKind.DATA_CHANGED):
            self._touched.add(event.path.removeprefix(f"{TOPICS}/"))
            self._look(TOPICS)

    async def deletions_wanted(self) -> None:
        """Deletes the topics that are marked for it. Raises StoreError, NOT_CONTROLLER."""
        controller = self._controller

        def aside(name: str) -> bool:
            """Whether it waits until it can be read."""
            return (TOPIC, name) in controller.image.unreadable

        async with controller.changing():
            # The marks of a deletion that is under way are the controller's own.
            marked = await controller.store.children(DELETE_TOPICS)
            new = [name for name in marked if name not in controller.image.deleting]
            known = [name for name in new if name in controller.image.topics]
            # A mark that stays would be taken for a deletion that was begun.
            is_refused = not controller.config().bool("delete.topic.enable")
            for name in new:
                if is_refused or (name not in known and not aside(name)):
                    await controller.write_operations([Delete(DeleteTopicNode.path(name))])
        if known and is_refused:
            log_refused_deletions(known)
        elif known:
            for line in in_lines(known):
                admin_log.info("topics were marked for deletion in the store: %s", line)
            for outcome in await controller.delete_topics(known, are_marked=True):
                if outcome.error is None:
                    continue
                if outcome.error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    logger.info("%s is not marked for deletion any more: %s", outcome.name, outcome.error)
                else:
                    logger.error("%s is not deleted: %s", outcome.name, outcome.error)


def _is_news(known: TopicImage | None, version: int) -> bool:
    """Whether a topic is new, or was written by somebody else since."""
    return known is None or known.node_version != version
