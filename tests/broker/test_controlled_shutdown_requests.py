"""The controlled shutdown of a broker: its requests, and how long it waits."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tidemill.broker.api_declaration import HandledApi
from tidemill.broker.controlled_shutdown_requests import request_controlled_shutdown
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.controlled_shutdown import ControlledShutdownResponse, RemainingPartition


def orders(replicas: list[int], offline: list[int]) -> TopicImage:
    """A topic that broker 1 leads, without another in-sync replica."""
    states = [PartitionImage(number, 1, 0, replicas, [1], offline=frozenset(offline)) for number in range(4)]
    return TopicImage("orders", b"o" * 16, tuple(states), {})


class LocalController:
    """A controller in the stopping broker. With each request one of ``others`` leaves the cluster."""

    def __init__(self, others: list[int], replicas: list[int] | None = None) -> None:
        self.attempts = 0
        self.brokers = dict.fromkeys([1, *others])
        self.replicas = replicas or [1, 2, 3]
        self.offline: list[int] = []
        self._others = others

    async def handle_controlled_shutdown(self, broker_id: int, *, broker_epoch: int) -> list[TopicPartition]:
        self.attempts += 1
        if self._others:
            del self.brokers[self._others.pop()]
        return [TopicPartition("orders", 0)]

    def attempts_of(self, retries: int) -> int:
        keys = {"controlled.shutdown.retry.backoff.ms": 1, "controlled.shutdown.max.retries": retries}
        broker: Any = SimpleNamespace(
            node_id=1,
            config=SimpleNamespace(
                bool=lambda key: True, int=keys.__getitem__, seconds=lambda key: keys[key] / 1000
            ),
            metadata_cache=SimpleNamespace(
                image=SimpleNamespace(
                    brokers=self.brokers, topics={"orders": orders(self.replicas, self.offline)}
                )
            ),
            controller=SimpleNamespace(is_active=True, leader_elections=self),
        )

        async def stop_fetchers() -> None:
            pass

        asyncio.run(request_controlled_shutdown(broker, lambda: 7, stop_fetchers))
        return self.attempts


def test_the_only_broker_does_not_wait() -> None:
    assert LocalController([]).attempts_of(5) == 0


def test_a_broker_that_becomes_the_only_one_stops_waiting() -> None:
    assert LocalController([3, 2]).attempts_of(5) == 2


def test_a_broker_waits_for_other_replicas_to_join_the_isr() -> None:
    controller = LocalController([])
    controller.brokers[2] = None
    assert controller.attempts_of(5) == 5


def test_a_broker_does_not_wait_for_partitions_whose_other_replicas_are_offline() -> None:
    controller = LocalController([], replicas=[1, 2])
    controller.brokers[3] = None
    assert controller.attempts_of(5) == 1, "broker 3 has none"
    controller = LocalController([], replicas=[1, 3])
    controller.brokers[3] = None
    controller.offline = [3]
    assert controller.attempts_of(5) == 1, "broker 3 cannot read it"


def test_a_broker_stops_waiting_when_the_last_other_replica_goes_offline() -> None:
    controller = LocalController([2], replicas=[1, 2])
    controller.brokers[3] = None
    assert controller.attempts_of(5) == 1


class RemoteController:
    """A controller in another broker, with its responses in their order."""

    def __init__(self, *responses: ControlledShutdownResponse) -> None:
        self.responses = list(responses)
        self.requests: list[tuple[int, int]] = []

    async def send_request(
        self, api: HandledApi, request: Any, response_type: type[ControlledShutdownResponse]
    ) -> ControlledShutdownResponse:
        assert (api.key, response_type) == (ApiKey.CONTROLLED_SHUTDOWN, ControlledShutdownResponse)
        self.requests.append((request.broker_id, request.broker_epoch))
        return self.responses.pop(0)


def log_lines_of_shutdown(
    channel: RemoteController | None, retries: int, caplog: pytest.LogCaptureFixture
) -> list[str]:
    """Returns the log lines of a controlled shutdown with a controller in another broker."""
    keys = {"controlled.shutdown.retry.backoff.ms": 1, "controlled.shutdown.max.retries": retries}
    broker: Any = SimpleNamespace(
        node_id=1,
        config=SimpleNamespace(
            bool=lambda key: True, int=keys.__getitem__, seconds=lambda key: keys[key] / 1000
        ),
        metadata_cache=SimpleNamespace(
            image=SimpleNamespace(brokers={1: None, 2: None}, topics={"orders": orders([1, 2], [])})
        ),
        controller=SimpleNamespace(is_active=False),
        cluster=SimpleNamespace(controller_channel=channel) if channel is not None else None,
    )

    async def stop_fetchers() -> None:
        pass

    caplog.clear()
    with caplog.at_level("INFO", "tidemill.broker"):
        asyncio.run(request_controlled_shutdown(broker, lambda: 7, stop_fetchers))
    return [record.getMessage() for record in caplog.records]


def test_requests_are_sent_until_no_partition_remains(caplog: pytest.LogCaptureFixture) -> None:
    left = [RemainingPartition(topic_name="orders", partition_index=3)]
    channel = RemoteController(
        ControlledShutdownResponse(remaining_partitions=left),
        ControlledShutdownResponse(remaining_partitions=[]),
    )
    assert log_lines_of_shutdown(channel, 5, caplog) == [
        "1 partitions have no other in-sync replica, orders-3 for instance",
        "other brokers lead all partitions that this broker led",
    ]
    assert channel.requests == [(1, 7)] * 2
    assert channel.responses == []


@pytest.mark.parametrize(("number", "name"), [(77, "STALE_BROKER_EPOCH"), (9999, "UNKNOWN_SERVER_ERROR")])
def test_an_error_of_the_controller_is_logged_with_its_code(
    caplog: pytest.LogCaptureFixture, number: int, name: str
) -> None:
    channel = RemoteController(*[ControlledShutdownResponse(error_code=number) for _ in range(100)])
    text = f"the controller returns error {number} ({name})"
    assert log_lines_of_shutdown(channel, 1, caplog)[-1] == f"the controlled shutdown failed: {text}"


@pytest.mark.parametrize(("retries", "attempts"), [(3, 3), (1, 1), (0, 1)])
def test_a_failed_attempt_is_followed_by_the_next_one(
    caplog: pytest.LogCaptureFixture, retries: int, attempts: int
) -> None:
    channel = RemoteController(*[ControlledShutdownResponse(error_code=77) for _ in range(100)])
    lines = log_lines_of_shutdown(channel, retries, caplog)
    assert sum(line.startswith("the controlled shutdown failed") for line in lines) == attempts


def test_a_broker_without_a_controller_channel_does_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    assert log_lines_of_shutdown(None, 1, caplog) == [
        "other brokers lead all partitions that this broker led"
    ]
