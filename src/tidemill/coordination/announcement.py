"""A change of the cluster that the controller announces to the brokers, and their results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tidemill.coordination.cluster_image import Delta
from tidemill.model.errors import KafkaError


class Announcement:
    """A change, the other brokers that are notified of it, and its failures on this broker.

    A component that cannot apply a change (create a log, say) reports that with :meth:`fail`; the client that
    requested the change gets that error.
    """

    __slots__ = ("delta", "failures", "others")

    def __init__(self, delta: Delta, others: Sequence[asyncio.Future[None]] = ()) -> None:
        self.delta = delta
        self.others = others
        """A future per other broker: done once that broker has applied the change."""
        self.failures: dict[str, KafkaError] = {}
        """The first error of each topic."""

    def fail(self, topic: str, error: KafkaError) -> None:
        """Records that this broker could not apply the change to ``topic``."""
        self.failures.setdefault(topic, error)
