"""Handles the notifications of failed data directories, which brokers write to the store.

Source: Apache Kafka, ``LogDirEventNotificationHandler`` of ``KafkaController.scala``.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable

from tidemill.controller.controller_context import ControllerContext
from tidemill.coordination.coordination_store import Delete, NoNode
from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import LOG_DIR_EVENTS, LogDirEventNode

logger = logging.getLogger(__name__)


async def process_log_dir_events(
    context: ControllerContext,
    own_directory_failed: Callable[[], Awaitable[None]],
    resend_full_state: Callable[[int], None],
) -> None:
    """Processes the notifications below ``/log_dir_event_notification``, and deletes them.

    ``own_directory_failed`` marks the failed replicas of this broker. ``resend_full_state`` repeats the
    LeaderAndIsr request to another broker, which reports its failed replicas in the response. Raises
    StoreError, NOT_CONTROLLER.
    """
    paths = [f"{LOG_DIR_EVENTS}/{name}" for name in await context.store.children(LOG_DIR_EVENTS)]
    failed_brokers: set[int] = set()
    for node in await context.store.get_many(paths):
        try:
            failed_brokers |= {LogDirEventNode.decode(node.data)} if node is not None else set()
        except NodeFormatError as problem:
            logger.error("%s The node is deleted.", problem)
    for broker_id in failed_brokers:
        if broker_id == context.election.broker_id:
            await own_directory_failed()
        else:
            resend_full_state(broker_id)
    async with context.change_lock():
        for path in paths:
            # Fenced by the controller epoch: after a controller change the next controller deletes them.
            with contextlib.suppress(NoNode):
                await context.write_operations([Delete(path)])
