"""The normal client of the tests of attacks measures the broker: neither the machine nor the test."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hostile_peers import NormalClient, normal_client
from normal_client_process import OWN_SCHEDSTAT, Client, queue_s

from tidemill.testing import Broker

DELAY_S = 1.5


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as one:
        yield one


def slowest_s(client: NormalClient) -> float:
    """Ends the client. Returns its slowest round."""
    return client.end()[1]


def pause(broker: Broker) -> None:
    os.kill(broker.pid, signal.SIGSTOP)
    time.sleep(DELAY_S)
    os.kill(broker.pid, signal.SIGCONT)


@contextmanager
def client_of(broker: Broker) -> Iterator[NormalClient]:
    client = NormalClient(broker, "honest")
    try:
        yield client
    finally:
        client.close()


def test_a_broker_that_does_nothing_for_long_makes_the_client_wait(broker: Broker) -> None:
    with client_of(broker) as client:
        pause(broker)
        assert slowest_s(client) > DELAY_S * 0.9


def test_such_a_wait_fails_a_test(broker: Broker) -> None:
    with pytest.raises(AssertionError, match="made a normal client wait"), normal_client(broker, 1.0):
        pause(broker)


def test_work_of_the_test_does_not_delay_the_client(broker: Broker) -> None:
    interval_s = sys.getswitchinterval()
    with client_of(broker) as client:
        sys.setswitchinterval(2 * DELAY_S)
        try:
            deadline = time.monotonic() + DELAY_S
            while time.monotonic() < deadline:
                pass
        finally:
            sys.setswitchinterval(interval_s)
        assert slowest_s(client) < DELAY_S / 2


def test_a_machine_without_a_free_processor_does_not_count(broker: Broker, tmp_path: Path) -> None:
    schedstat = tmp_path / "schedstat"
    schedstat.write_text("5000000000 1000000000 17\n")
    client = Client((broker.host, broker.port), broker.pid, "unused", b"")
    client.broker_schedstat = str(schedstat)
    began = client.now_s()
    schedstat.write_text("5000000000 8500000000 18\n")
    assert client.now_s() - began < -7
    client.peer.close()


def test_a_system_without_these_times_counts_everything(tmp_path: Path) -> None:
    assert queue_s(str(tmp_path / "absent")) == 0
    assert queue_s(OWN_SCHEDSTAT) >= 0
