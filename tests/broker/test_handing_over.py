"""What a broker that stops waits for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tidemill.broker.handing_over import hand_over
from tidemill.model.types import TopicPartition


class Asked:
    """A controller, in the broker that stops; each time it is asked, one of ``others`` goes."""

    def __init__(self, others: list[int]) -> None:
        self.attempts = 0
        self.brokers = dict.fromkeys([1, *others])
        self._others = others

    async def shut_down(self, broker_id: int, epoch: int) -> list[TopicPartition]:
        self.attempts += 1
        if self._others:
            del self.brokers[self._others.pop()]
        return [TopicPartition("orders", 0)]

    def attempts_of(self, retries: int) -> int:
        keys = {"controlled.shutdown.retry.backoff.ms": 1, "controlled.shutdown.max.retries": retries}
        broker: Any = SimpleNamespace(
            node_id=1,
            config=SimpleNamespace(bool=lambda key: True, int=keys.__getitem__),
            metadata=SimpleNamespace(image=SimpleNamespace(brokers=self.brokers)),
            controller=SimpleNamespace(is_active=True, leading=self),
        )

        async def nobody() -> None:
            pass

        asyncio.run(hand_over(broker, lambda: 7, nobody))
        return self.attempts


def test_the_last_broker_waits_for_nobody() -> None:
    assert Asked([]).attempts_of(5) == 0


def test_a_broker_that_becomes_the_last_one_waits_no_longer() -> None:
    assert Asked([2, 3]).attempts_of(5) == 2


def test_the_others_may_get_in_sync_meanwhile() -> None:
    asked = Asked([])
    asked.brokers[2] = None
    assert asked.attempts_of(5) == 5
