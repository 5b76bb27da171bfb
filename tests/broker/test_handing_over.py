"""What a broker that stops waits for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.broker.handing_over import hand_over
from tidemill.coordination.image import PartitionImage, TopicImage
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.controlled_shutdown import ControlledShutdownResponse, RemainingPartition


def orders(replicas: list[int], offline: list[int]) -> TopicImage:
    """A topic that broker 1 leads, and nobody else is in sync of."""
    states = [PartitionImage(number, 1, 0, replicas, [1], offline=frozenset(offline)) for number in range(4)]
    return TopicImage("orders", b"o" * 16, tuple(states), {})


class Asked:
    """A controller, in the broker that stops; each time it is asked, one of ``others`` goes."""

    def __init__(self, others: list[int], replicas: list[int] | None = None) -> None:
        self.attempts = 0
        self.brokers = dict.fromkeys([1, *others])
        self.replicas = replicas or [1, 2, 3]
        self.offline: list[int] = []
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
            metadata=SimpleNamespace(
                image=SimpleNamespace(
                    brokers=self.brokers, topics={"orders": orders(self.replicas, self.offline)}
                )
            ),
            controller=SimpleNamespace(is_active=True, leading=self),
        )

        async def nobody() -> None:
            pass

        asyncio.run(hand_over(broker, lambda: 7, nobody))
        return self.attempts


def test_the_last_broker_waits_for_nobody() -> None:
    assert Asked([]).attempts_of(5) == 0


def test_a_broker_that_becomes_the_last_one_waits_no_longer() -> None:
    assert Asked([3, 2]).attempts_of(5) == 2


def test_the_others_may_get_in_sync_meanwhile() -> None:
    asked = Asked([])
    asked.brokers[2] = None
    assert asked.attempts_of(5) == 5


def test_leaders_are_not_waited_for_whose_other_replicas_are_on_brokers_that_are_down() -> None:
    asked = Asked([], replicas=[1, 2])
    asked.brokers[3] = None
    assert asked.attempts_of(5) == 1, "broker 3 has none"
    asked = Asked([], replicas=[1, 3])
    asked.brokers[3] = None
    asked.offline = [3]
    assert asked.attempts_of(5) == 1, "broker 3 cannot read it"


def test_leaders_are_waited_for_no_longer_once_the_last_other_replica_has_gone() -> None:
    asked = Asked([2], replicas=[1, 2])
    asked.brokers[3] = None
    assert asked.attempts_of(5) == 1


class Elsewhere:
    """A controller in another broker, and its answers one after the other."""

    def __init__(self, *answers: ControlledShutdownResponse) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, int, tuple[int, int]]] = []

    async def ask(self, key: ApiKey, versions: tuple[int, int], request: Any) -> ControlledShutdownResponse:
        assert key == ApiKey.CONTROLLED_SHUTDOWN
        self.asked.append((request.broker_id, request.broker_epoch, versions))
        return self.answers.pop(0)


def handed_over(link: Elsewhere | None, retries: int, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a broker logs that hands over to a controller in another one."""
    keys = {"controlled.shutdown.retry.backoff.ms": 1, "controlled.shutdown.max.retries": retries}
    broker: Any = SimpleNamespace(
        node_id=1,
        config=SimpleNamespace(bool=lambda key: True, int=keys.__getitem__),
        metadata=SimpleNamespace(
            image=SimpleNamespace(brokers={1: None, 2: None}, topics={"orders": orders([1, 2], [])})
        ),
        controller=SimpleNamespace(is_active=False),
        controller_link=link,
    )

    async def nobody() -> None:
        pass

    caplog.clear()
    with caplog.at_level("INFO", "tidemill.broker"):
        asyncio.run(hand_over(broker, lambda: 7, nobody))
    return [record.getMessage() for record in caplog.records]


def test_the_controller_is_asked_until_nothing_is_left(caplog: pytest.LogCaptureFixture) -> None:
    left = [RemainingPartition(topic_name="orders", partition_index=3)]
    link = Elsewhere(
        ControlledShutdownResponse(remaining_partitions=left),
        ControlledShutdownResponse(remaining_partitions=[]),
    )
    assert handed_over(link, 5, caplog) == [
        "1 partitions have no other replica in sync, orders-3 for instance",
        "what this broker led is led by others",
    ]
    assert link.asked == [(1, 7, (3, 3))] * 2
    assert link.answers == []


@pytest.mark.parametrize(("number", "name"), [(77, "STALE_BROKER_EPOCH"), (9999, "UNKNOWN_SERVER_ERROR")])
def test_an_error_of_the_controller_is_told_with_its_number(
    caplog: pytest.LogCaptureFixture, number: int, name: str
) -> None:
    link = Elsewhere(*[ControlledShutdownResponse(error_code=number) for _ in range(100)])
    text = f"the controller answers with error {number} ({name})"
    assert handed_over(link, 1, caplog)[-1] == f"leaderships cannot be handed over: {text}"


def test_a_broker_without_a_controller_has_nobody_to_hand_over_to(caplog: pytest.LogCaptureFixture) -> None:
    assert handed_over(None, 1, caplog) == ["what this broker led is led by others"]
