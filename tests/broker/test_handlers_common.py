"""Common parts of handlers: work that outlives its request, and the handler of each API."""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import logging
import pkgutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_request_order import served

from tidemill.broker import handlers
from tidemill.broker.api_declaration import HandledApi
from tidemill.broker.api_registry import APIS
from tidemill.broker.handler_dispatch import HandlerDispatch
from tidemill.broker.handlers import init_producer_id
from tidemill.broker.handlers.common import run_within_timeout
from tidemill.broker.request_context import RequestContext
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.net.peer import Listener, Peer
from tidemill.transactions.coordinator_effects import ProducerResult
from tidemill.wire.apis import API, ApiKey, request_class, response_class
from tidemill.wire.messages.init_producer_id import InitProducerIdRequest


async def test_a_stop_waits_for_work_that_outlived_its_request() -> None:
    ended: list[str] = []

    async def work() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        ended.append("work")

    with pytest.raises(KafkaError, match="it continues"):
        await run_within_timeout(0, work())
    dispatch: Any = SimpleNamespace(tasks=set())
    await HandlerDispatch.stop(dispatch)
    assert ended == ["work"]


def test_a_stop_cancels_work_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    broken_off: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            broken_off.append("work")
            raise

    async def story() -> None:
        with pytest.raises(KafkaError, match="it continues"):
            await run_within_timeout(0, work())
        tasks: set[asyncio.Future[None]] = set()
        handler = asyncio.ensure_future(run_within_timeout(60_000, work()))
        tasks.add(handler)
        handler.add_done_callback(tasks.discard)
        dispatch: Any = SimpleNamespace(tasks=tasks)
        await HandlerDispatch.stop(dispatch)
        assert broken_off == ["work", "work"]

    monkeypatch.setattr("tidemill.broker.handler_dispatch.STOP_S_MAX", 0.01)
    asyncio.run(story())


def test_work_that_outlives_its_request_continues_and_its_failure_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[str] = []

    async def work(name: str, go: asyncio.Event, problem: Exception | None) -> str:
        await go.wait()
        ended.append(name)
        if problem is not None:
            raise problem
        return name

    async def story() -> None:
        go = asyncio.Event()
        for name, problem in (("well", None), ("no", KafkaError("no room")), ("bug", ZeroDivisionError())):
            with pytest.raises(KafkaError, match="it continues") as caught:
                await run_within_timeout(0, work(name, go, problem))
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        cancelled = asyncio.ensure_future(
            run_within_timeout(60_000, work("of a request that was broken off", go, None))
        )
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait((cancelled,))
        gc.collect()
        go.set()
        assert await run_within_timeout(60_000, work("in time", go, None)) == "in time"

    with caplog.at_level(logging.INFO, "tidemill.broker"):
        asyncio.run(story())
    assert ended == ["well", "no", "bug", "of a request that was broken off", "in time"]
    assert [record.levelname for record in caplog.records if "outlived" in record.getMessage()] == [
        "INFO",
        "ERROR",
    ]
    assert "no room" in caplog.text
    assert "ZeroDivisionError" in caplog.text


CONTEXT: Any = SimpleNamespace(api_version=5, slices=SimpleNamespace(wait_for=lambda work: work))
"""The context of a request whose handler uses no more of it."""


def test_every_api_is_answered_by_the_handler_of_its_name() -> None:
    for key, api in APIS.items():
        name = ApiKey(key).name.lower()
        if key in (ApiKey.PRODUCE, ApiKey.FETCH):
            assert api is importlib.import_module(f"tidemill.broker.{name}_handler").API
            continue
        handler = importlib.import_module(f"tidemill.broker.handlers.{name}")
        assert api is handler.API
        assert api.handle is handler.handle
        response = inspect.signature(api.handle).return_annotation.split(" | ")[0]
        assert response == f"messages.{response_class(key).__name__}"
        assert api.request_class() is request_class(key)


def test_the_versions_of_every_handler_are_described() -> None:
    """The handler declares the served versions, the classes of its messages those that can be encoded."""
    for key, api in APIS.items():
        assert API[key].version_min <= api.first <= api.last <= API[key].version_max


def test_every_handler_is_registered() -> None:
    names = [one.name for one in pkgutil.iter_modules(handlers.__path__)]
    modules = [importlib.import_module(f"tidemill.broker.handlers.{name}") for name in names]
    declared = [one.API for one in modules if isinstance(getattr(one, "API", None), HandledApi)]
    assert {api.key for api in declared} == set(APIS) - {ApiKey.PRODUCE, ApiKey.FETCH}


AT_ONCE = {
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.HEARTBEAT,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.API_VERSIONS,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.CREATE_ACLS,
    ApiKey.DELETE_ACLS,
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    ApiKey.DESCRIBE_LOG_DIRS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.DESCRIBE_PRODUCERS,
    ApiKey.LIST_CONFIG_RESOURCES,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
}


async def test_small_requests_without_waits_are_answered_at_once(tmp_path: Path) -> None:
    """A task for each would take longer than most of the responses."""

    async with served(tmp_path) as (server, _):
        client = Peer(Listener("PLAINTEXT", "localhost", 9092), "User:ANONYMOUS", "127.0.0.1", 1)
        for key in AT_ONCE:
            context = RequestContext(client, "test", key, APIS[key].last, 1)
            answer = APIS[key].handle(server.broker, context, request_class(key)())
            assert isinstance(answer, response_class(key)), key


@pytest.mark.parametrize(
    ("transactional_id", "outcome"),
    [
        (None, (0, 42, 0)),
        ("", (ErrorCode.INVALID_REQUEST, -1, -1)),
    ],
)
def test_a_new_producer_gets_a_new_id_and_epoch_0(
    transactional_id: str | None, outcome: tuple[int, int, int]
) -> None:
    async def next_id() -> int:
        return 42

    async def refuse(_: object) -> ProducerResult:
        return ProducerResult(error=ErrorCode.INVALID_REQUEST)

    broker: Any = SimpleNamespace(
        producer_id_manager=SimpleNamespace(next=next_id),
        transaction_coordinator=SimpleNamespace(init_producer_id=refuse),
    )
    request = InitProducerIdRequest(transactional_id=transactional_id)
    answer = asyncio.run(init_producer_id.handle(broker, CONTEXT, request))
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == outcome


def test_the_response_has_the_error_if_no_producer_id_is_available() -> None:
    async def next_id() -> int:
        raise KafkaError("the store is away", ErrorCode.COORDINATOR_NOT_AVAILABLE)

    request = InitProducerIdRequest(transactional_id=None)
    broker: Any = SimpleNamespace(producer_id_manager=SimpleNamespace(next=next_id))
    answer = asyncio.run(init_producer_id.handle(broker, CONTEXT, request))
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        -1,
        -1,
    )
