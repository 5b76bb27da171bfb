"""Warns when messages wait for some seconds because their topic does not exist any more.

They wait until ``delivery.timeout.ms``: a broker may not know the topic yet, and a deleted topic may be
created again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tidemill.client.coordinator_warnings import WARN_AFTER_S, WARN_AGAIN_S

logger = logging.getLogger(__name__)


class MissingTopicWarnings:
    """Tracks for how long each topic has been missing. For one thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._missing: dict[str, tuple[float, float | None]] = {}
        """By topic: since when it is missing, and when the last warning was logged."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The missing topics."""
        return tuple(self._missing)

    def is_missing(self, topic: str, reason: str) -> None:
        """Records that messages wait for a topic. Warns once a minute while it is missing."""
        now = self._now()
        since, warned = self._missing.setdefault(topic, (now, None))
        if now - since < WARN_AFTER_S or (warned is not None and now - warned < WARN_AGAIN_S):
            return
        self._missing[topic] = since, now
        logger.warning("messages for topic %s wait for %.0f s: %s", topic, now - since, reason)

    def exists(self, topic: str) -> None:
        """Records that a topic exists."""
        _, warned = self._missing.pop(topic, (0.0, None))
        if warned is not None:
            logger.warning("topic %s exists again", topic)
