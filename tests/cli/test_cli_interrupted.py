"""The numbers of messages sent, acknowledged and read, printed after ctrl-C and after errors."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_process import LONG_S, Command, commands

from tidemill import _interrupts
from tidemill.cli.consume import Format, _report_count
from tidemill.cli.wait_messages import Watch
from tidemill.client import Admin, Producer
from tidemill.client.errors import ClientError
from tidemill.model.errors import ErrorCode
from tidemill.testing import Broker

Run = Callable[..., str]


@pytest.fixture
def own(tmp_path: Path) -> Broker:
    """A broker for one test, not started."""
    return Broker(data_dir=tmp_path / "data")


def acknowledged(command: Command, broker: Broker, topic: str, count: int) -> None:
    with Admin(broker.bootstrap) as admin:
        deadline = time.monotonic() + LONG_S
        while admin.list_offsets({(topic, 0): "latest"})[topic, 0].offset < count:  # type: ignore[index]
            assert time.monotonic() < deadline, command.err
            time.sleep(0.05)


def test_ctrl_c_prints_the_numbers_of_sent_and_acknowledged_messages(broker: Broker, cli: Run) -> None:
    cli("topic", "create", "ended")
    with commands(
        ["produce", "ended", "-b", broker.bootstrap],
        ["consume", "ended", "--from-beginning", "-b", broker.bootstrap],
        ["consume", "ended", "--from-beginning", "-g", "enders", "-b", broker.bootstrap],
    ) as (produce, *readers):
        produce.write("one\ntwo\nthree\n")
        for reader in readers:
            reader.wait_for_line("^three$", where="out")
        acknowledged(produce, broker, "ended", 3)
        for command, message in (
            (produce, "interrupted: 3 messages sent, all acknowledged"),
            *((reader, "interrupted: 3 messages read") for reader in readers),
        ):
            assert command.interrupt() == 130
            assert command.err[-1][1] == message


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_commands_as_ctrl_c_does(
    broker: Broker, cli: Run, number: signal.Signals, code: int
) -> None:
    topic = f"signalled-{code}"
    group = f"group-{topic}"
    cli("topic", "create", topic)
    where = ("-b", broker.bootstrap)
    with commands(
        ["produce", topic, *where], ["consume", topic, "--from-beginning", "-g", group, *where]
    ) as (produce, consume):
        produce.write("one\ntwo\n")
        consume.wait_for_line("^two$", where="out")
        acknowledged(produce, broker, topic, 2)
        assert produce.interrupt(number) == code
        assert produce.errors()[-1] == "interrupted: 2 messages sent, all acknowledged"
        assert consume.interrupt(number) == code
        assert consume.errors()[-1] == "interrupted: 2 messages read"
    with Admin(broker.bootstrap) as admin:
        assert list(admin.describe_group(group).members) == []
        (committed,) = admin.group_offsets(group).values()
    assert committed.offset == 2


def test_a_signal_soon_after_another_does_not_interrupt_the_end_of_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(_interrupts, "received", 0)
    monkeypatch.setattr(_interrupts, "_received_s", -1.0)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with pytest.raises(KeyboardInterrupt):
        _interrupts._interrupt(signal.SIGTERM, None)
    now[0] = 0.4
    _interrupts._interrupt(signal.SIGINT, None)
    assert _interrupts.exit_code(["consume"]) == 143
    now[0] = 0.6
    with pytest.raises(KeyboardInterrupt):
        _interrupts._interrupt(signal.SIGINT, None)
    assert _interrupts.exit_code(["consume"]) == 130
    assert _interrupts.exit_code(["serve"]) == 0


def test_ctrl_c_prints_the_figures_of_a_measurement_so_far(broker: Broker, cli: Run) -> None:
    cli("topic", "create", "measured")
    with commands(
        ["perf", "produce", "measured", "-n", "1000000", "--rate", "1000", "-b", broker.bootstrap]
    ) as (perf,):
        acknowledged(perf, broker, "measured", 500)
        assert perf.interrupt() == 130
        message = perf.errors()[-1]
    count = re.fullmatch(
        r"interrupted: ([\d,]+) messages in [\d.]+ s, [\d,]+ messages/s, [\d.]+ k?B/s", message
    )
    assert count, message
    assert int(count[1].replace(",", "")) >= 400


def test_ctrl_c_prints_the_number_of_messages_with_unknown_outcome(own: Broker) -> None:
    with own:
        with Admin(own.bootstrap) as admin:
            admin.create_topic("ended")
        with commands(["produce", "ended", "-b", own.bootstrap]) as (produce,):
            produce.write("one\n")
            acknowledged(produce, own, "ended", 1)
            os.kill(own.pid, signal.SIGSTOP)
            try:
                produce.write("two\nthree\n")
                produce.wait_for_line("^warning: 2 messages for ended-0 not acknowledged")
                began = time.monotonic()
                assert produce.interrupt() == 130
                assert time.monotonic() - began < 20
            finally:
                os.kill(own.pid, signal.SIGCONT)
            assert produce.errors()[-1] == (
                "interrupted: 3 messages sent, 1 acknowledged; 2 without acknowledgement may or may not be "
                "stored"
            )


def test_messages_without_acknowledgements_have_an_unknown_outcome(broker: Broker, cli: Run) -> None:
    cli("topic", "create", "unasked")
    with commands(["produce", "unasked", "-a", "0", "-b", broker.bootstrap]) as (produce,):
        produce.write("one\n")
        acknowledged(produce, broker, "unasked", 1)
        assert produce.interrupt() == 130
        message = "interrupted: 1 message sent; with acks=0 there is no acknowledgement of their arrival"
        assert produce.errors()[-1] == message


def test_an_error_has_the_numbers_of_sent_acknowledged_or_read_messages(own: Broker) -> None:
    with own:
        with Admin(own.bootstrap) as admin:
            admin.create_topic("ended")
        brief = ("-X", "delivery.timeout.ms=4000", "-X", "request.timeout.ms=2000")
        where = ("-b", own.bootstrap)
        with commands(
            ["produce", "ended", *where, *brief],
            ["consume", "ended", "--from-beginning", "-n", "9", "--timeout", "8s", *where],
        ) as (produce, consume):
            produce.write("one\n")
            consume.wait_for_line("^one$", where="out")
            own.kill()
            produce.write("two\nthree\n")
            produce.end_input()
            assert produce.wait() == 1
            assert produce.errors()[-1].startswith("tidemill: 2 messages for ended-0 ")
            summary = "3 messages sent, 1 acknowledged; 2 without acknowledgement may or may not be stored"
            assert produce.errors()[-1].endswith(f" ({summary})")
            assert consume.wait() == 1
            assert consume.errors()[-1].startswith("tidemill: 1 of 9 messages came, and then none within 8 s")


def test_an_error_has_the_number_of_read_messages() -> None:
    shown = Format("plain", set(), "", lambda line: len(line), False)
    shown.count = 2
    with pytest.raises(ClientError) as caught, _report_count(shown):
        raise ClientError("refused", ErrorCode.OFFSET_OUT_OF_RANGE)
    assert caught.value.__notes__ == ["2 messages read"]


def test_a_wait_ended_by_failed_messages_is_not_reported_as_resolved(own: Broker) -> None:
    with own:
        with Admin(own.bootstrap) as admin:
            admin.create_topic("ended", 2)
        brief = {"delivery.timeout.ms": 5000, "request.timeout.ms": 2000}
        with Producer(own.bootstrap, brief) as producer:
            producer.send("ended", b"one", partition=0).result(30)
            own.kill()
            lines: list[str] = []
            watch = Watch(lines.append)
            deliveries = [producer.send("ended", b"two", partition=number) for number in (0, 1)]
            deadline = time.monotonic() + LONG_S
            while not all(one.done() for one in deliveries) and time.monotonic() < deadline:
                watch.update(producer.waits(), time.monotonic())
                time.sleep(0.1)
            for after in (0.0, 1.0, 2.0):
                watch.update(producer.waits(), time.monotonic() + after)
            assert [line for line in lines if "not acknowledged" in line]
            assert not [line for line in lines if "again" in line and "warning" not in line]
            assert producer.counts() == (3, 1, 2, 0)
            own.start()
            producer.send("ended", b"three", partition=0).result(30)
            assert [wait.subject for wait in producer.waits()] == ["ended-1"]
