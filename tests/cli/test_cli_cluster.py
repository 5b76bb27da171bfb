"""``tidemill cluster``: the quick start with three brokers, and the errors of missing prerequisites."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from tidemill.cli import local_cluster
from tidemill.cli.local_cluster import LocalCluster, free_port
from tidemill.cli.main import run
from tidemill.cli.processes import Background
from tidemill.testing import Cluster

Call = Callable[..., str]


@pytest.fixture
def call(capfdbinary: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs one command line in the directory of the test; returns its output. ``code`` is its exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEMILL_BOOTSTRAP", raising=False)

    def called(*arguments: str, code: int = 0) -> str:
        capfdbinary.readouterr()
        outcome = run(arguments)
        captured: tuple[bytes, bytes] = capfdbinary.readouterr()
        out, err = (text.decode() for text in captured)
        assert outcome == code, (out, err)
        return out if code == 0 else out + err

    return called


@pytest.fixture
def up(call: Call, tmp_path: Path) -> Iterator[Call]:
    """Three brokers of this test."""
    try:
        call("cluster", "up", "--brokers", "3", "--port", "0")
        yield call
    finally:
        local = LocalCluster.load(str(tmp_path / "tidemill-cluster"))
        for name in local.names if local is not None else ():
            local.kill(name)  # type: ignore[union-attr]


def status(call: Call, *arguments: str) -> Any:
    return json.loads(call("cluster", "status", "--json", *arguments))


def test_the_commands_of_the_quick_start_work(up: Call) -> None:
    found = json.loads(up("cluster", "up", "--json"))
    assert [one["id"] for one in found["brokers"]] == [1, 2, 3]
    pids = {one["id"]: one["pid"] for one in found["brokers"]}
    lines = up("cluster", "up").splitlines()
    assert all(" already runs on " in line for line in lines)
    assert [line.partition(" already runs")[0] for line in lines] == [
        "ZooKeeper",
        "broker 1",
        "broker 2",
        "broker 3",
    ]
    bootstrap = ("-b", found["bootstrap"])
    up("topic", "create", "hello", "-p", "6", *bootstrap)
    Path("messages").write_text("".join(f"{number}\n" for number in range(100)))
    up("produce", "hello", "--file", "messages", *bootstrap)
    well = status(up, "--check")
    assert (well["partitions"], well["under_replicated"], well["offline"]) == (6, [], [])
    assert sum(one["leads"] for one in well["brokers"]) == 6
    assert [one["pid"] for one in well["brokers"]] == list(pids.values())
    victim = well["controller"]
    assert up("cluster", "kill", str(victim)).startswith(
        f"killed broker {victim} (process {pids[victim]}); 'tidemill cluster start {victim}' starts it again"
    )
    read = up("consume", "hello", "--from-beginning", "-n", "100", *bootstrap)
    assert sorted(map(int, read.split())) == list(range(100))
    hurt = status(up)
    assert [one["living"] for one in hurt["brokers"]] == [number != victim for number in (1, 2, 3)]
    assert len(hurt["under_replicated"]) == 6
    up("cluster", "status", "--check", code=1)
    assert "is not running" in up("cluster", "kill", str(victim), code=1)
    up("cluster", "start", str(victim))
    assert [one["living"] for one in status(up)["brokers"]] == [True] * 3
    assert up("cluster", "down").splitlines()[-1] == "stopped ZooKeeper"
    assert "'tidemill cluster up' starts them" in up("cluster", "status", code=1)
    for number in (1, 2, 3):
        log = Path("tidemill-cluster", f"broker-{number}", "broker.log").read_text()
        assert "Traceback" not in log, log
    up("cluster", "up")
    read = up("consume", "hello", "--from-beginning", "-n", "100", *bootstrap)
    assert sorted(map(int, read.split())) == list(range(100))
    taken = str(found["brokers"][1]["port"])
    assert "belongs to broker 2 of this cluster" in up("cluster", "add", "--port", taken, code=1)
    assert up("cluster", "add", "--port", "0").startswith("broker 4 runs on 127.0.0.1:")
    assert [one["living"] for one in status(up)["brokers"]] == [True] * 4
    assert "'tidemill cluster decommission 1'" in up("cluster", "remove", "1", code=1)
    assert up("cluster", "remove", "4") == "stopped broker 4\nremoved broker 4\n"
    # Former addresses still belong to this cluster, although one of the brokers is removed.
    before = f"{found['bootstrap']},127.0.0.1:{free_port()}"
    assert [one["pid"] for one in status(up, "-b", before)["brokers"]] == [
        one["pid"] for one in json.loads(up("cluster", "up", "--json"))["brokers"]
    ]
    assert "already runs" in up("cluster", "up", "--brokers", "3")
    assert not Path("tidemill-cluster", "broker-4").exists()
    up("cluster", "down", "--delete", "--yes")
    assert not Path("tidemill-cluster").exists()


def test_the_status_reports_a_stopped_zookeeper_and_its_check_fails(up: Call) -> None:
    bootstrap = ("-b", json.loads(up("cluster", "up", "--json"))["bootstrap"])
    up("topic", "create", "hello", *bootstrap)
    status(up, "--check")
    up("cluster", "kill", "zookeeper")
    message = up("cluster", "status", "--check", code=1)
    assert "ZooKeeper is down: 'tidemill cluster start zookeeper' starts it" in message
    assert "brokers 1, 2, 3 without the coordination store" in message
    found = status(up)
    assert [one["broker"] for one in found["without_store"]] == [1, 2, 3]
    assert found["zookeeper"]["pid"] is None
    up("cluster", "start", "zookeeper")
    deadline = time.monotonic() + 30
    while status(up)["without_store"] and time.monotonic() < deadline:
        time.sleep(0.1)
    status(up, "--check")


def test_the_check_fails_for_any_cluster_whose_brokers_do_not_reach_their_store(call: Call) -> None:
    with Cluster(1) as cluster:
        where = ("cluster", "status", "-b", cluster.bootstrap)
        call(*where, "--check")
        cluster.store.kill()
        deadline = time.monotonic() + 30
        while not (found := json.loads(call(*where, "--json")))["without_store"]:
            assert time.monotonic() < deadline
        assert [one["broker"] for one in found["without_store"]] == [1]
        assert not found["under_replicated"] + found["offline"]
        call(*where, "--check", code=1)


def test_a_topic_deleted_without_a_broker_can_be_recreated_after_its_removal(
    up: Call,
) -> None:
    bootstrap = ("-b", json.loads(up("cluster", "up", "--json"))["bootstrap"])
    up("topic", "create", "gone", *bootstrap)
    removed = next(number for number in (1, 2, 3) if number != status(up)["controller"])
    up("cluster", "kill", str(removed))
    up("topic", "delete", "gone", "--yes", *bootstrap)
    for option in ((), ("--if-not-exists",)):
        message = up("topic", "create", "gone", "--replication-factor", "1", *option, *bootstrap, code=1)
        assert f"waits for brokers [{removed}]: start them" in message
        assert f"'tidemill broker unregister {removed}'" in message
    assert up("cluster", "remove", str(removed)) == f"removed broker {removed}\n"
    message = up("topic", "create", "gone", "--replication-factor", "1", *bootstrap)
    assert message.startswith("created gone")


def test_deleting_a_cluster_keeps_other_files(call: Call) -> None:
    Path("mine.txt").write_text("kept")
    local = LocalCluster(".", "127.0.0.1:9/tidemill-cluster", None, {})
    with local.locked():
        local.add_brokers(2, 0, {})
    message = call("cluster", "down", "-d", ".", "--delete")
    assert message.splitlines()[-1] == "deleted the cluster; mine.txt in . kept: not part of the cluster"
    assert [one.name for one in Path().iterdir()] == ["mine.txt"]


def test_errors_of_missing_prerequisites_have_the_next_step(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "'tidemill cluster up' creates one" in call("cluster", "kill", "1", code=1)
    assert "there is no cluster in other" in call("cluster", "status", "-d", "other", code=1)
    monkeypatch.setenv("PATH", "")
    message = call("cluster", "up", "--port", "0", code=1)
    assert "install a Java runtime" in message
    assert "--zookeeper HOST:PORT" in message
    message = call("cluster", "up", "-z", f"127.0.0.1:{free_port()}", "--port", "0", code=1)
    assert "no ZooKeeper can be reached" in message
    assert "is not HOST:PORT" in call("cluster", "up", "-z", "nowhere", "--port", "0", code=2)
    assert not Path("tidemill-cluster").exists()
    message = call("cluster", "up", "--set", "num.partition=3", code=2)
    assert "num.partition is not a broker key (--set); did you mean num.partitions?" in message
    assert "its own" in call("cluster", "up", "--set", "node.id=3", code=2)
    assert "0 is out of range" in call("cluster", "up", "--brokers", "0", code=2)


def test_an_existing_cluster_keeps_its_zookeeper_and_its_brokers(call: Call) -> None:
    local = LocalCluster("tidemill-cluster", "127.0.0.1:9/tidemill-cluster", None, {})
    with local.locked():
        local.add_brokers(3, 0, {"num.partitions": "7", "tidemill.metrics.port": "9404"})
        assert "another command" in call("cluster", "stop", "1", code=1)
    keys = Path("tidemill-cluster/broker-2/server.properties").read_text().splitlines()
    assert {"num.partitions=7", "tidemill.metrics.port=9405"} < set(keys)
    assert "min.insync.replicas=2\n" in Path("tidemill-cluster/broker-3/server.properties").read_text()
    assert "is on ZooKeeper at" in call("cluster", "up", "-z", "127.0.0.1:10", code=1)
    assert "decommission" in call("cluster", "up", "--brokers", "2", code=1)
    assert "server.properties" in call("cluster", "up", "--set", "num.partitions=1", code=1)
    message = call("cluster", "up", "--port", "1", code=1)
    assert f"--port is for new brokers; those in tidemill-cluster keep theirs ({local.bootstrap})" in message
    assert "--brokers 4, or name another directory with -d" in message
    # The requested brokers are the existing ones: ZooKeeper is not reachable, which is checked next.
    first = min(local.ports.values())
    assert "no ZooKeeper can be reached" in call("cluster", "up", "--port", str(first), code=1)
    assert "no ZooKeeper can be reached" in call("cluster", "up", "--port", "0", code=1)
    assert "there are: 1, 2, 3" in call("cluster", "stop", "4", code=1)
    assert "no other broker runs" in call("cluster", "remove", "2", code=1)
    assert call("cluster", "down") == "nothing was running\n"
    Path("tidemill-cluster/cluster.json").write_text("{}")
    assert "repair it" in call("cluster", "down", code=1)


def test_invalid_values_are_refused_before_any_write(call: Call) -> None:
    for key, value in (("num.partitions", "0"), ("min.insync.replicas", "x")):
        message = call("cluster", "up", "--port", "0", "--set", f"{key}={value}", code=1)
        assert f"{key}={value}: allowed is" in message
    with socket.create_server(("127.0.0.1", 0)) as listens:
        where = f"127.0.0.1:{listens.getsockname()[1]}/x/../y"
        assert "'/x/../y' is not a node path" in call("cluster", "up", "-z", where, "--port", "0", code=1)
    assert [path.name for path in Path("tidemill-cluster").iterdir()] == ["lock"]


def test_each_broker_that_does_not_start_is_named(call: Call) -> None:
    local = LocalCluster("tidemill-cluster", f"127.0.0.1:{free_port()}", None, {})
    with local.locked():
        local.add_brokers(2, 0, {})
        for number in (1, 2):
            path = local.process(str(number)).directory / "server.properties"
            path.write_text(path.read_text() + f"num.partitions=-{number}\n")
        with pytest.raises(Exception, match=r"(?s)num.partitions=-.*\ntidemill: .*num.partitions=-"):
            list(local.start_brokers([1, 2]))


def test_a_slow_start_is_explained_by_the_log_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local_cluster, "NOTICE_S", 0.5)
    monkeypatch.setattr(local_cluster, "START_TIMEOUT_S", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        local = LocalCluster(str(tmp_path), f"127.0.0.1:{silent.getsockname()[1]}/x", None, {})
        with local.locked():
            local.add_brokers(1, 0, {})
            try:
                with pytest.raises(click.ClickException, match="is not ready yet"):
                    list(local.start_brokers([1]))
            finally:
                local.kill("1")
            (notice,) = capsys.readouterr().err.splitlines()
            start, _, line = notice.partition(": ")
            assert start == "broker 1 is still starting"
            assert line in local.process("1").log_file.read_text()


def test_an_interrupted_command_lists_the_running_processes(tmp_path: Path, capsys: Any) -> None:
    local = LocalCluster(str(tmp_path), "127.0.0.1:1", 1, {})
    pid = local.process("zookeeper").start(["/bin/sh", "-c", "exec sleep 60"])
    try:
        with pytest.raises(KeyboardInterrupt), local.locked():
            raise KeyboardInterrupt
        assert f"ZooKeeper runs: 'tidemill cluster up -d {tmp_path}' starts the" in capsys.readouterr().err
    finally:
        os.kill(pid, signal.SIGKILL)
    assert local.process("zookeeper").wait_end(10)


def test_a_given_directory_overrides_brokers_of_the_environment(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = LocalCluster("two", "127.0.0.1:9/x", None, {})
    with local.locked():
        local.add_brokers(1, 0, {})
    elsewhere = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("TIDEMILL_BOOTSTRAP", elsewhere)
    for command in (("status",), ("decommission", "1"), ("rebalance",), ("elect",)):
        assert "no broker of the cluster in two is running" in call("cluster", *command, "-d", "two", code=1)
    assert elsewhere in call("cluster", "status", code=1)
    assert elsewhere in call("cluster", "status", "-d", "two", "-b", elsewhere, code=1)
    monkeypatch.delenv("TIDEMILL_BOOTSTRAP")
    keys = ("-X", f"bootstrap.servers={elsewhere}")
    assert elsewhere in call("cluster", "status", *keys, code=1)
    assert "no broker of the cluster in two is running" in call(
        "cluster", "status", "-d", "two", *keys, code=1
    )


def test_a_full_disk_is_reported(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: LocalCluster) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LocalCluster, "save", full)
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
        message = call("cluster", "up", "--port", "0", code=1)
    assert message == "tidemill: there is no space left in tidemill-cluster: free some\n"


def test_a_process_of_another_user_is_named(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = LocalCluster("tidemill-cluster", "127.0.0.1:1", 1, {})
    with local.locked():
        local.save()
    pid = local.process("zookeeper").start(["/bin/sh", "-c", "exec sleep 60"])

    def refused(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", refused)
            message = f"ZooKeeper (process {pid}) belongs to another user: run the command as that user"
            assert message in call("cluster", "kill", "zookeeper", code=1)
            assert message in call("cluster", "stop", "zookeeper", code=1)
    finally:
        os.kill(pid, signal.SIGKILL)
    assert local.process("zookeeper").wait_end(10)


def test_a_process_whose_id_cannot_be_written_is_ended(tmp_path: Path) -> None:
    (tmp_path / "one.pid").mkdir()
    with pytest.raises(IsADirectoryError):
        Background(tmp_path, "one").start(["/bin/sh", "-c", "exec sleep 60"])
    pid, _, started = (tmp_path / "one.pid.tmp").read_text().strip().partition(" ")
    (tmp_path / "two.pid").write_text(f"{pid} {started}\n")
    assert Background(tmp_path, "two").wait_end(10)


def test_a_port_of_another_broker_of_the_cluster_is_refused(call: Call) -> None:
    local = LocalCluster("tidemill-cluster", "127.0.0.1:9/x", None, {})
    port = free_port()
    with local.locked():
        local.add_brokers(1, port, {})
    with pytest.raises(click.ClickException) as refused:
        local.add_brokers(1, port, {}, is_exact=True)
    message = f"port {port} belongs to broker 1 of this cluster: give another port, or leave --port out for "
    assert refused.value.message == f"{message}{port + 1}"
    assert list(LocalCluster.existing("tidemill-cluster").ports) == [1]


def test_a_port_in_use_is_named(call: Call) -> None:
    port = free_port()
    local = LocalCluster("tidemill-cluster", "127.0.0.1:9/x", None, {})
    with local.locked():
        local.add_brokers(1, port, {})
    with socket.create_server(("127.0.0.1", port)), pytest.raises(Exception, match=f"port {port} is in use"):
        next(local.start_brokers([1]))


def test_ports_in_use_are_named_before_anything_is_started_or_written(call: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = call("cluster", "up", "--brokers", "2", "--port", str(port), code=1)
        assert f"port {port} is in use by process {os.getpid()} (" in message
        assert LocalCluster.load("tidemill-cluster") is None
        assert [path.name for path in Path("tidemill-cluster").iterdir()] == ["lock"]
        # Of existing brokers as well, including the last: the others are not started.
        local = LocalCluster("tidemill-cluster", f"127.0.0.1:{free_port()}", free_port(), {})
        with local.locked():
            local.add_brokers(1, free_port(), {})
            local.ports[2] = port
            local.save()
        assert f"port {port} is in use" in call("cluster", "up", code=1)
        assert local.running() == {}


def test_a_running_zookeeper_is_found_at_its_port(tmp_path: Path) -> None:
    local = LocalCluster(str(tmp_path), "127.0.0.1:1", 1, {})
    process = local.process("zookeeper")
    process.directory.mkdir(parents=True)
    (process.directory / "zoo.cfg").write_text("dataDir=/x\nclientPort=2999\nadmin.enableServer=false\n")
    assert LocalCluster.new(str(tmp_path), None, True).own_port != 2999  # it is not running
    pid = process.start(["/bin/sh", "-c", "exec sleep 60"])
    try:
        found = LocalCluster.new(str(tmp_path), None, False)
        assert (found.own_port, found.zookeeper_connect) == (2999, "127.0.0.1:2999")
    finally:
        os.kill(pid, signal.SIGKILL)
    assert process.wait_end(10)


def test_a_reused_process_id_is_detected(tmp_path: Path) -> None:
    process = Background(tmp_path, "one")
    assert process.pid() is None
    pid = process.start(["/bin/sh", "-c", "echo up; exec sleep 60"])
    try:
        assert process.pid() == pid
        file = tmp_path / "one.pid"
        file.write_text(f"{pid} 1\n")
        assert process.pid() is None
        assert process.signal(signal.SIGKILL) is None
    finally:
        os.kill(pid, signal.SIGKILL)
    assert process.wait_end(10)


def test_a_suspended_process_is_not_waited_for(tmp_path: Path) -> None:
    local = LocalCluster(str(tmp_path / "of mine"), "127.0.0.1:1", 1, {})
    process = local.process("zookeeper")
    pid = process.start(["/bin/sh", "-c", "exec sleep 60"])
    try:
        assert not process.is_suspended
        os.kill(pid, signal.SIGSTOP)
        while not process.is_suspended:
            os.sched_yield()
        message = (
            rf"'kill -CONT {pid}' resumes it, 'tidemill cluster kill zookeeper -d '/.*/of mine'' kills it"
        )
        with pytest.raises(Exception, match=message):
            local.stop("zookeeper")
    finally:
        os.kill(pid, signal.SIGKILL)
    assert process.wait_end(10)


def test_an_undetected_ended_broker_is_not_shown_as_live(up: Call) -> None:
    up("cluster", "kill", "zookeeper", "2")
    found = status(up)
    assert [one["living"] for one in found["brokers"]] == [True, False, True]
    assert (found["unnoticed"], found["zookeeper"]["pid"]) == ([2], None)
    up("cluster", "status", "--check", code=1)
    lines = up("cluster", "start", "2").splitlines()
    assert [line.partition(" runs on ")[0] for line in lines] == ["ZooKeeper", "broker 2"]
    found = status(up, "--check")
    assert (found["unnoticed"], [one["living"] for one in found["brokers"]]) == ([], [True] * 3)


def test_the_port_in_the_file_of_a_broker_is_used(tmp_path: Path) -> None:
    local = LocalCluster(str(tmp_path), "127.0.0.1:9/x", None, {})
    with local.locked():
        local.add_brokers(3, 0, {})
    first, second, third = (tmp_path / f"broker-{number}" / "server.properties" for number in (1, 2, 3))
    first.write_text(
        first.read_text() + "#listeners=PLAINTEXT://:1\nlisteners = A://[::1]:2999 , B://:3000\n"
    )
    second.write_text("advertised.listeners=PLAINTEXT://127.0.0.1:1\nlisteners=nonsense\n")
    third.unlink()
    found = LocalCluster.load(str(tmp_path))
    assert found is not None
    assert found.ports == {**local.ports, 1: 2999}
    # Until it is started again, a broker listens at its former port.
    process = local.process("1")
    pid = process.start(["/bin/sh", "-c", "exec sleep 60"])
    try:
        ready = first.with_name("ready.json")
        for message, port in (
            (f'{{"pid": {pid}, "listeners": [{{"port": 77}}]}}', 77),
            ('{"pid": 1}', 2999),
        ):
            ready.write_text(message)
            found = LocalCluster.load(str(tmp_path))
            assert found is not None
            assert found.ports[1] == port
    finally:
        os.kill(pid, signal.SIGKILL)
    assert process.wait_end(10)
