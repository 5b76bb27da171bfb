"""``produce``, ``consume`` and ``perf`` soon print why they wait, and when the wait ends.

The broker is a real one: it is killed, suspended, disconnected by a proxy, refuses messages, or its disk is
full.
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from command_process import Command, commands

from tidemill.cli.wait_messages import Watch
from tidemill.client import Admin, Producer
from tidemill.client.wait_reasons import Kind, Wait
from tidemill.testing import Broker

SOON_S = 4.0
"""Three seconds are the promise; the rest is for a machine that gives the command no time."""

ACKNOWLEDGED = r"^messages for \S+ are acknowledged again$"
READ = r"^held-0 can be read again$"


class Proxy:
    """A proxy between clients and a broker that advertises it; while ``cut`` is set, it forwards nothing."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.target = 0
        self.cut = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            client,
            socket.create_connection(("127.0.0.1", self.target)) as server,
        ):
            while True:
                for source in (
                    select.select([client, server], [], [], 0.1)[0] if not self.cut.is_set() else []
                ):
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    (server if source is client else client).sendall(data)
                if self.cut.is_set():
                    time.sleep(0.05)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    yield made
    made.close()


def hold(
    broker: Broker, bootstrap: str, begin: Callable[[], object], end: Callable[[], object], reason: str
) -> None:
    """Starts all commands; then ``begin`` blocks messages until ``end``."""
    with Admin(bootstrap) as admin:
        admin.create_topic("held", 1)
    where = ("-b", bootstrap)
    with commands(
        ["produce", "held", *where],
        ["consume", "held", "--from-beginning", *where],
        ["consume", "held", "--from-beginning", "-g", "readers", *where],
        ["perf", "produce", "perf", "-n", "1000000", "--rate", "50", *where],
    ) as started:
        produce, alone, member, perf = started
        produce.write("first\n")
        for reader in (alone, member):
            reader.wait_for_line("^first$", where="out")
        await_messages(bootstrap, "perf")
        assert not [line for one in started for line in one.errors() if "readers" not in line]
        at = time.monotonic()
        begin()
        produce.write("second\n")
        assert (
            produce.wait_for_line(rf"^warning: 1 message for held-0 not acknowledged .*{reason}", after=at)
            < SOON_S
        )
        assert alone.wait_for_line(rf"^warning: held-0 cannot be read .*{reason}", after=at) < SOON_S
        assert member.wait_for_line(rf"^warning: held-0 cannot be read .*{reason}", after=at) < SOON_S
        assert perf.wait_for_line(rf"^warning: .* for perf-0 not acknowledged .*{reason}", after=at) < SOON_S
        member.wait_for_line(r"^warning: group readers waits for its coordinator", after=at)
        end()
        for one, over in ((produce, ACKNOWLEDGED), (alone, READ), (member, READ), (perf, ACKNOWLEDGED)):
            one.wait_for_line(over, after=at)
        member.wait_for_line(r"^the coordinator of group readers responds again$", after=at)
        alone.wait_for_line("^second$", where="out")
        member.wait_for_line("^second$", where="out")
        assert [line for _, line in alone.out] == ["first", "second"]
        assert [line for _, line in member.out] == ["first", "second"]
        assert produce.out == perf.out == []
        assert not [line for line in alone.errors() if "warning" in line][1:]


def await_messages(bootstrap: str, topic: str) -> None:
    with Admin(bootstrap) as admin:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(Exception):
                if any(at.offset for at in admin.list_offsets({(topic, 0): "latest"}).values()):
                    return
            time.sleep(0.1)
    raise AssertionError(f"nothing came into {topic}")


@pytest.mark.parametrize(
    ("begin", "end", "reason"),
    [
        pytest.param(Broker.kill, Broker.start, "no connection to broker", id="killed"),
        pytest.param(Broker.pause, Broker.resume, "has not answered", id="suspended"),
    ],
)
def test_a_lost_broker_is_reported_within_seconds_and_so_is_its_return(
    begin: Callable[[Broker], object], end: Callable[[Broker], object], reason: str
) -> None:
    with Broker() as broker:
        hold(broker, broker.bootstrap, lambda: begin(broker), lambda: end(broker), reason)


def test_a_disconnected_broker_is_reported_within_seconds_and_so_is_its_return(proxy: Proxy) -> None:
    with Broker({"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}) as broker:
        proxy.target = broker.port
        address = f"127.0.0.1:{proxy.port}"
        hold(broker, address, proxy.cut.set, proxy.cut.clear, "has not answered")


def produce_while(broker: Broker, command: Command, begin: Callable[[], object]) -> float:
    """Returns the time at which messages were blocked, after the first was acknowledged."""
    command.write("first\n")
    await_messages(broker.bootstrap, "refused")
    at = time.monotonic()
    begin()
    command.write("second\n")
    return at


def test_a_full_disk_is_reported_within_seconds_and_so_is_its_end() -> None:
    with Broker() as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topic("refused", 1)
        _, hard = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        with commands(["produce", "refused", "-b", broker.bootstrap]) as (produce,):
            at = produce_while(
                broker, produce, lambda: resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (80, hard))
            )
            assert (
                produce.wait_for_line(
                    r"^warning: 1 message for refused-0 not .*KAFKA_STORAGE_ERROR", after=at
                )
                < SOON_S
            )
            resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (hard, hard))
            produce.wait_for_line("^messages for refused-0 are acknowledged again$", after=at)


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_hanging_bootstrap_broker_is_reported_and_the_command_times_out(silent: str) -> None:
    brief = ("-b", silent, "-X", "default.api.timeout.ms=6000")
    with commands(
        ["topic", "list", *brief],
        ["consume", "held", *brief],
        ["consume", "held", "-g", "readers", *brief],
        ["perf", "consume", "held", *brief],
        ["produce", "held", *brief],
    ) as started:
        for one in started:
            one.wait_for_line("^warning: .* has not answered")
            assert one.wait() == 1
            assert next(line for line in one.errors() if "warning" not in line).startswith("tidemill: "), (
                one.err
            )
            spent = one.err[-1][0] - next(at for at, line in one.err if "warning" in line)
            assert spent < 10, one.err


def test_a_hanging_bootstrap_broker_does_not_block_the_others(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.Random.shuffle", lambda self, items: None)  # It is tried first.
    with Broker() as broker, Admin(f"{silent},{broker.bootstrap}") as admin:
        began = time.monotonic()
        assert admin.list_topics() == []
        assert time.monotonic() - began < 5
        with Producer(f"{silent},{broker.bootstrap}") as producer:
            producer.send("t", b"v").result(10)
        assert time.monotonic() - began < 15


def test_a_long_wait_is_printed_once_a_minute_and_its_end_once() -> None:
    lines: list[str] = []
    watch = Watch(lines.append)

    def look(second: float, *found: Wait) -> list[str]:
        watch.update(found, 100 + second)
        message = lines[:]
        lines.clear()
        return message

    def waits(*partitions: int, reason: str = "no leader") -> list[Wait]:
        return [Wait(Kind.READ, f"t-{one}", reason, 100.0) for one in partitions]

    cluster = Wait(Kind.CLUSTER, "", "nobody answers", 100.0)
    assert look(2, *waits(1)) == []
    assert look(2.9, *waits(1), cluster) == ["warning: t-1 cannot be read for 3 s, retried: no leader"]
    assert look(59, *waits(1)) == []
    assert look(64, *waits(1, 2, 3, 4, 5)) == [
        "warning: t-1, t-2, t-3 and 2 others cannot be read for 64 s, retried: no leader"
    ]
    # Between two attempts there is no wait for a moment; that does not end the report.
    assert look(64.2) == look(64.4, *waits(1, 2)) == look(64.6) == []
    assert look(65.2, cluster) == ["t-1, t-2, t-3 and 2 others can be read again"]
    assert look(67, cluster) == []
    assert look(68, cluster) == ["warning: no response for 3 s, retried: nobody answers"]
    assert look(69) == []
    assert look(70) == ["the cluster responds again"]
    sent = Wait(Kind.ACKNOWLEDGEMENT, "t-1", "why", 180.0, 1200, 120.0)
    assert look(83, sent) == [
        "warning: 1,200 messages for t-1 not acknowledged for 3 s, retried for 120 s at most: why"
    ]
