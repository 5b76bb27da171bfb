"""The responses of /metrics and /healthz, and their limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidemill.model.time_histogram import TimeHistogram
from tidemill.server import http_endpoint
from tidemill.server.health import Health
from tidemill.server.http_endpoint import MetricsEndpoint
from tidemill.server.metrics import (
    HISTOGRAM,
    Family,
    ProcessMetrics,
    counter,
    gauge,
    render,
    resident_bytes,
)


def parsed(body: bytes) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_a_histogram_counts_in_the_right_buckets() -> None:
    histogram = TimeHistogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        histogram.record(seconds)
    assert histogram.cumulative() == [("0.1", 2.0), ("1.0", 3.0), ("+Inf", 4.0)]
    assert histogram.sum == pytest.approx(7.65)


def test_renders_families_in_the_prometheus_format() -> None:
    histogram = TimeHistogram((0.1,))
    histogram.record(0.05)
    content_type, body = render(
        [
            counter("x_requests", "Requests.").add(3, api="Produce").add(1, api='a"b\n'),
            gauge("x_open", "Open.", 2),
            Family("x_seconds", HISTOGRAM, "Times.").add(histogram, api="Fetch"),
        ]
    )
    assert content_type.startswith("text/plain; version=")
    found = parsed(body)
    assert found["x_requests_total"] == {(("api", "Produce"),): 3.0, (("api", 'a"b\n'),): 1.0}
    assert found["x_open"] == {(): 2.0}
    assert found["x_seconds_count"] == {(("api", "Fetch"),): 1.0}
    assert found["x_seconds_bucket"][(("api", "Fetch"), ("le", "0.1"))] == 1.0


def test_renders_open_metrics_if_accepted() -> None:
    content_type, body = render([gauge("x", "X.", 1)], "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


def test_the_process_reports_version_mode_and_memory() -> None:
    found = parsed(render(ProcessMetrics().families())[1])
    (labels,) = found["tidemill_info"]
    assert dict(labels)["mode"] in ("compiled", "plain")
    assert found["tidemill_compiled"][()] in (0.0, 1.0)
    assert found["process_resident_memory_bytes"][()] > 5e6
    assert 5e6 < resident_bytes() < 5e9


@asynccontextmanager
async def endpoint(
    well: bool = True, gather: Callable[[], Any] = lambda: [gauge("x", "X.", 1)]
) -> AsyncIterator[MetricsEndpoint]:
    facts = {
        "cluster_id": "c",
        "broker_id": 1,
        "failed_directories": [],
        "full_directories": ["/full"],
        "store_silent_s": 0.0,
    }
    made = MetricsEndpoint(gather, lambda: Health("" if well else "stopping", facts if well else {}))
    await made.start("127.0.0.1", 0)
    try:
        yield made
    finally:
        await made.stop()


async def ask(made: MetricsEndpoint, request: bytes) -> tuple[int, dict[str, str], bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
    try:
        writer.write(request)
        return parse_response(await reader.read())
    finally:
        writer.close()
        await writer.wait_closed()


def parse_response(response: bytes) -> tuple[int, dict[str, str], bytes]:
    head, _, body = response.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:])
    return int(lines[0].split()[1]), headers, body


async def test_responds_to_metrics_and_health_requests() -> None:
    async with endpoint() as made:
        status, headers, body = await ask(made, b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status == 200
        assert headers["content-type"].startswith("text/plain")
        assert int(headers["content-length"]) == len(body)
        assert parsed(body)["x"] == {(): 1.0}
        status, _, body = await ask(made, b"GET /healthz HTTP/1.1\r\n\r\n")
        assert (status, json.loads(body)) == (
            200,
            {
                "status": "ok",
                "cluster_id": "c",
                "broker_id": 1,
                "failed_directories": [],
                "full_directories": ["/full"],
                "store_silent_s": 0.0,
            },
        )
        status, headers, body = await ask(made, b"HEAD /metrics HTTP/1.0\r\n\r\n")
        assert (status, body) == (200, b"")
        assert int(headers["content-length"]) > 0


async def test_other_tasks_run_while_metrics_are_gathered() -> None:
    turns: list[str] = []

    def gather() -> Iterator[Family | None]:
        for number in range(3):
            turns.append("gather")
            yield gauge(f"x{number}", "x", number)
            yield None

    made = MetricsEndpoint(gather, Health)
    await made.start("127.0.0.1", 0)
    done = asyncio.create_task(ask(made, b"GET /metrics HTTP/1.1\r\n\r\n"))
    while not done.done():
        turns.append("other")
        await asyncio.sleep(0)
    assert set(parsed((await done)[2])) >= {"x0", "x1", "x2"}
    await made.stop()
    first = turns.index("gather")
    assert turns[first : first + 5] == ["gather", "other", "gather", "other", "gather"]


async def test_an_unhealthy_broker_responds_with_503() -> None:
    async with endpoint(well=False) as made:
        status, _, body = await ask(made, b"GET /healthz HTTP/1.1\r\n\r\n")
        assert (status, json.loads(body)) == (503, {"status": "unwell", "reason": "stopping"})


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /other HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"GET /metrics\r\n\r\n", 400),
        (b"\x00\x00\x00\x04abcd\r\n\r\n", 400),
        (b"GET metrics HTTP/1.1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 20_000 + b"\r\n\r\n", 431),
    ],
)
async def test_responds_to_invalid_requests(request_bytes: bytes, status: int) -> None:
    async with endpoint() as made:
        assert (await ask(made, request_bytes))[0] == status


async def test_closes_a_silent_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_endpoint, "HEAD_SECONDS_MAX", 0.05)

    async with endpoint() as made:
        assert (await ask(made, b"GET /metr"))[0] == 408


async def test_a_closed_connection_is_not_logged() -> None:
    async with endpoint() as made:
        _, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(b"GET /metr")
        writer.close()
        await writer.wait_closed()
        assert (await ask(made, b"GET /healthz HTTP/1.1\r\n\r\n"))[0] == 200


async def test_closes_connections_over_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_endpoint, "CONNECTIONS_MAX", 1)

    async with endpoint() as made:
        _, idle = await asyncio.open_connection("127.0.0.1", made.port)
        idle.write(b"GET /metr")
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        idle.write(b"ics HTTP/1.1\r\n\r\n")
        idle.close()


async def test_an_exception_is_a_500_response() -> None:
    def gather() -> Any:
        raise RuntimeError("a fault")

    async with endpoint(gather=gather) as made:
        assert (await ask(made, b"GET /metrics HTTP/1.1\r\n\r\n"))[0] == 500
