"""A query whose brokers cannot be reached fails in seconds; a running stream waits for its brokers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.types import StructType

from tidemill.client import Admin
from tidemill.client.errors import BrokerUnreachable
from tidemill.pipeline import client_pool
from tidemill.pipeline.batch_reader import TidemillReader
from tidemill.pipeline.options import parse_source_options
from tidemill.pipeline.stream_reader import TidemillStreamReader
from tidemill.testing import Broker

SCHEMA = StructType().add("value", "binary")


def plan_batch(bootstrap: str, **more: str) -> None:
    TidemillReader(options(bootstrap, streaming=False, **more), SCHEMA).partitions()


def start_stream(bootstrap: str, **more: str) -> None:
    TidemillStreamReader(options(bootstrap, **more), SCHEMA).initialOffset()


def continue_stream(bootstrap: str, **more: str) -> None:
    group = {"commitOffsets": "true", "kafka.group.id": "g"}
    reader = TidemillStreamReader(options(bootstrap, **group, **more), SCHEMA)
    reader.latestOffset({"t": {"0": 1}})


def options(bootstrap: str, *, streaming: bool = True, **more: str) -> Any:
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": "t", **more}
    return parse_source_options(given, streaming=streaming)


def seconds_until_unreachable(work: Callable[..., None], *given: Any, **more: str) -> float:
    began_s = time.monotonic()
    with pytest.raises(BrokerUnreachable, match="no broker can be reached"):
        work(*given, **more)
    return time.monotonic() - began_s


@pytest.mark.parametrize("work", [plan_batch, start_stream, continue_stream])
def test_brokers_that_refuse_connections_fail_a_query_in_seconds(work: Callable[..., None]) -> None:
    assert seconds_until_unreachable(work, "localhost:1,localhost:2") < 10


def test_brokers_that_do_not_answer_fail_a_query_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_pool, "REFUSED_TIMEOUT_S", 1.0)
    monkeypatch.setattr(client_pool, "UNANSWERED_TIMEOUT_S", 3.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert 2.5 < seconds_until_unreachable(plan_batch, f"127.0.0.1:{port}") < 10


def test_the_timeout_of_the_options_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_pool, "REFUSED_TIMEOUT_S", 0.1)
    timeout = {"kafka.default.api.timeout.ms": "2500"}
    assert 1.5 < seconds_until_unreachable(plan_batch, "localhost:1", **timeout) < 10


def test_a_running_stream_waits_for_its_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_pool, "REFUSED_TIMEOUT_S", 0.1)
    with Broker() as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("t", 1, 1)
        reader = TidemillStreamReader(options(broker.bootstrap), SCHEMA)
        start = reader.initialOffset()
        broker.kill()
        starter = threading.Timer(2.0, broker.start)
        starter.start()
        try:
            assert reader.latestOffset(start) == start
        finally:
            starter.join()
            reader.stop()
