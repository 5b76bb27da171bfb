"""Work that takes longer than its request may: the client is told, and nobody else forgets it."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from tidemill.broker.handlers.common import within
from tidemill.model.errors import ErrorCode, KafkaError


def test_what_outlives_its_request_goes_on_and_its_failure_is_told(caplog: pytest.LogCaptureFixture) -> None:
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
            with pytest.raises(KafkaError, match="it goes on") as caught:
                await within(0, work(name, go, problem))
            assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        cancelled = asyncio.ensure_future(within(60_000, work("of a request that was broken off", go, None)))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait((cancelled,))
        gc.collect()
        go.set()
        assert await within(60_000, work("in time", go, None)) == "in time"

    with caplog.at_level(logging.INFO, "tidemill.broker"):
        asyncio.run(story())
    assert ended == ["well", "no", "bug", "of a request that was broken off", "in time"]
    assert [record.levelname for record in caplog.records if "outlived" in record.getMessage()] == [
        "INFO",
        "ERROR",
    ]
    assert "no room" in caplog.text
    assert "ZeroDivisionError" in caplog.text
