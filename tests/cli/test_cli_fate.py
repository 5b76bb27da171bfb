"""The numbers of messages sent, acknowledged or read, after ctrl-C and errors; missing topics."""

from __future__ import annotations

import os
import pty
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_process import LONG_S, Command, commands

from tidemill.cli.consume import Format, _report_count
from tidemill.cli.output import counted
from tidemill.cli.wait_messages import Watch
from tidemill.client import Admin, Consumer, Producer
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
        for command, wait_for_line in (
            (produce, "interrupted: 3 messages sent, all acknowledged"),
            *((reader, "interrupted: 3 messages read") for reader in readers),
        ):
            assert command.interrupt() == 130
            assert command.errors()[-1] == wait_for_line


def test_ctrl_c_prints_the_figures_of_a_measurement_so_far(broker: Broker, cli: Run) -> None:
    cli("topic", "create", "measured")
    with commands(
        ["perf", "produce", "measured", "-n", "1000000", "--rate", "1000", "-b", broker.bootstrap]
    ) as (perf,):
        acknowledged(perf, broker, "measured", 500)
        assert perf.interrupt() == 130
        wait_for_line = perf.errors()[-1]
    count = re.fullmatch(
        r"interrupted: ([\d,]+) messages in [\d.]+ s, [\d,]+ messages/s, [\d.]+ k?B/s", wait_for_line
    )
    assert count, wait_for_line
    assert int(count[1].replace(",", "")) >= 400


def test_an_offset_out_of_range_is_reported(broker: Broker, cli: Run) -> None:
    cli("topic", "create", "short", "-p", "3")
    arguments = ["consume", "short", "--offset", "5", "--timeout", "1s", "-b", broker.bootstrap]
    with commands(arguments, [*arguments, "-p", "2"]) as (all_of_them, one):
        assert (all_of_them.wait(), one.wait()) == (0, 0)
        assert all_of_them.errors() == [
            "tidemill: offset 5 is out of range in short-0, which has 0 to 0: reading starts at 0; 2 other "
            "partitions too"
        ]
        assert one.errors() == [
            "tidemill: offset 5 is out of range in short-2, which has 0 to 0: reading starts at 0"
        ]


def test_the_error_of_an_unknown_key_suggests_a_similar_key(
    cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.cli.config.on_terminal", lambda: True)
    assert "'retentoin.ms' in its name; did you mean retention.ms?" in cli("config", "keys", "retentoin.ms")


@pytest.mark.parametrize(("number", "text"), [(0, "0 batches"), (1, "1 batch"), (2000, "2,000 batches")])
def test_an_irregular_plural(number: int, text: str) -> None:
    assert counted(number, "batch", "batches") == text


def test_the_error_of_a_missing_topic_suggests_a_similar_topic(cli: Run) -> None:
    cli("topic", "create", "departures")
    assert "; did you mean departures?" in cli("topic", "describe", "departure", code=1)


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
                "interrupted: 3 messages sent, 1 acknowledged; the fate of the other 2 is unknown"
            )


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
            fate = "3 messages sent, 1 acknowledged; the fate of the other 2 is unknown"
            assert produce.errors()[-1].endswith(f" ({fate})")
            assert consume.wait() == 1
            assert consume.errors()[-1].startswith("tidemill: 1 of 9 messages came, and then none within 8 s")


def test_a_missing_topic_is_created_only_on_request(broker: Broker, cli: Run, tmp_path: Path) -> None:
    cli("topic", "create", "orders")
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    wait_for_line = cli("produce", "ordres", "-f", str(lines), code=1)
    assert wait_for_line == (
        "tidemill: topic 'ordres' does not exist: 'tidemill topic create ordres' creates it, or --create of "
        "this command; did you mean orders?\n"
    )
    assert "ordres" not in cli("topic", "list")
    cli("produce", "returns", "-f", str(lines), "--create")
    cli("produce", "returns", "-f", str(lines), "--create")
    assert cli("consume", "returns", "--from-beginning", "-n", "4", "--timeout", "20s").count("one\n") == 2
    with Consumer(broker.bootstrap) as consumer, pytest.raises(ClientError, match="UNKNOWN_TOPIC"):
        consumer.partitions_for("ordres")


def test_an_error_has_the_number_of_read_messages() -> None:
    shown = Format("plain", set(), "", lambda line: len(line), False)
    shown.count = 2
    with pytest.raises(ClientError) as caught, _report_count(shown):
        raise ClientError("refused", ErrorCode.OFFSET_OUT_OF_RANGE)
    assert caught.value.__notes__ == ["2 messages read"]


def test_messages_without_acknowledgements_have_an_unknown_outcome(broker: Broker, cli: Run) -> None:
    cli("topic", "create", "unasked")
    with commands(["produce", "unasked", "-a", "0", "-b", broker.bootstrap]) as (produce,):
        produce.write("one\n")
        acknowledged(produce, broker, "unasked", 1)
        assert produce.interrupt() == 130
        wait_for_line = (
            "interrupted: 1 message sent; with acks=0 there is no acknowledgement of their arrival"
        )
        assert produce.errors()[-1] == wait_for_line


@pytest.mark.parametrize("group", [(), ("-g", "fleet-readers")])
def test_a_missing_topic_cannot_be_read_and_is_not_created(cli: Run, group: tuple[str, ...]) -> None:
    cli("topic", "create", "fleets", "--if-not-exists")
    wait_for_line = cli("consume", "fleet", "-e", *group, code=1)
    assert wait_for_line == (
        "tidemill: topic 'fleet' does not exist: 'tidemill topic create fleet' creates it, 'tidemill topic "
        "list' shows the topics; did you mean fleets?\n"
    )
    assert "fleet " not in cli("topic", "list").replace("\t", " ")


def on_a_terminal(broker: Broker, answer: str, topic: str) -> tuple[int, str]:
    """``echo line | tidemill produce TOPIC`` on a terminal with the typed ``answer``; returns exit code and
    screen.
    """
    return typed(answer, f"echo a line | {sys.executable} -m tidemill produce {topic} -b {broker.bootstrap}")


def typed(answer: str, command: str) -> tuple[int, str]:
    """A shell line on a terminal with the typed ``answer``; returns exit code and screen."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execv("/bin/sh", ["/bin/sh", "-c", command])
    screen = b""
    try:
        while piece := os.read(descriptor, 4096):
            screen += piece
            if answer and b"[y/N]" in screen:
                os.write(descriptor, answer.encode())
                answer = ""
    except OSError:
        pass
    finally:
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, screen.decode()


def test_on_a_terminal_it_asks_whether_to_create_a_topic(broker: Broker, cli: Run) -> None:
    cli("topic", "create", "flights")
    code, screen = on_a_terminal(broker, "n\n", "fligths")
    assert code == 1
    assert "topic 'fligths' does not exist; did you mean flights? Create 'fligths'? [y/N]" in screen
    assert "fligths" not in cli("topic", "list")
    code, screen = on_a_terminal(broker, "y\n", "landings")
    assert "topic 'landings' does not exist. Create 'landings'? [y/N]" in screen
    assert code == 0, screen
    assert cli("consume", "landings", "--from-beginning", "-n", "1", "--timeout", "20s") == "a line\n"


def test_a_refused_confirmation_is_a_failure_without_changes(broker: Broker, cli: Run) -> None:
    cli("topic", "create", "kept")
    delete = f"{sys.executable} -m tidemill topic delete kept -b {broker.bootstrap}"
    code, screen = typed("n\n", delete)
    assert (code, "tidemill: nothing was done: not confirmed" in screen) == (1, True)
    assert "kept\t" in cli("topic", "list")
    assert typed("y\n", delete)[0] == 0
    assert "kept\t" not in cli("topic", "list")


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
            assert producer.counts() == (3, 1, 2)
            own.start()
            producer.send("ended", b"three", partition=0).result(30)
            assert [wait.subject for wait in producer.waits()] == ["ended-1"]
