"""``tidemill cluster``: the quick start with three brokers, and what is said when something is missing."""

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

from tidemill.cli.local import LocalCluster, free_port
from tidemill.cli.main import run
from tidemill.cli.processes import Background
from tidemill.testing import Cluster

Call = Callable[..., str]


@pytest.fixture
def call(capfdbinary: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs one command line in a directory of the test's own; its output. ``code`` is its exit code."""
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
    """Three brokers of the test's own."""
    try:
        call("cluster", "up", "--brokers", "3", "--port", "0")
        yield call
    finally:
        local = LocalCluster.load(str(tmp_path / "tidemill-cluster"))
        for name in local.names if local is not None else ():
            local.kill(name)  # type: ignore[union-attr]


def status(call: Call, *arguments: str) -> Any:
    return json.loads(call("cluster", "status", "--json", *arguments))


def test_the_quick_start(up: Call) -> None:
    found = json.loads(up("cluster", "up", "--json"))
    assert [one["id"] for one in found["brokers"]] == [1, 2, 3]
    pids = {one["id"]: one["pid"] for one in found["brokers"]}
    lines = up("cluster", "up").splitlines()
    assert all(" runs already on " in line for line in lines)
    assert [line.partition(" runs")[0] for line in lines] == ["ZooKeeper", "broker 1", "broker 2", "broker 3"]
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
        f"killed broker {victim} (process {pids[victim]}); 'tidemill cluster start {victim}' brings it back"
    )
    read = up("consume", "hello", "--from-beginning", "-n", "100", *bootstrap)
    assert sorted(map(int, read.split())) == list(range(100))
    hurt = status(up)
    assert [one["living"] for one in hurt["brokers"]] == [number != victim for number in (1, 2, 3)]
    assert len(hurt["under_replicated"]) == 6
    up("cluster", "status", "--check", code=1)
    assert "does not run" in up("cluster", "kill", str(victim), code=1)
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
    assert "is that of broker 2 of this cluster" in up("cluster", "add", "--port", taken, code=1)
    assert up("cluster", "add", "--port", "0").startswith("broker 4 runs on 127.0.0.1:")
    assert [one["living"] for one in status(up)["brokers"]] == [True] * 4
    assert "'tidemill cluster decommission 1'" in up("cluster", "remove", "1", code=1)
    assert up("cluster", "remove", "4") == "stopped broker 4\nremoved broker 4\n"
    # Addresses from before are of this cluster still, though one of them is gone.
    before = f"{found['bootstrap']},127.0.0.1:{free_port()}"
    assert [one["pid"] for one in status(up, "-b", before)["brokers"]] == [
        one["pid"] for one in json.loads(up("cluster", "up", "--json"))["brokers"]
    ]
    assert "runs already" in up("cluster", "up", "--brokers", "3")
    assert not Path("tidemill-cluster", "broker-4").exists()
    up("cluster", "down", "--delete", "--yes")
    assert not Path("tidemill-cluster").exists()


def test_the_status_of_a_cluster_whose_zookeeper_has_ended_says_so_and_its_check_fails(up: Call) -> None:
    bootstrap = ("-b", json.loads(up("cluster", "up", "--json"))["bootstrap"])
    up("topic", "create", "hello", *bootstrap)
    status(up, "--check")
    up("cluster", "kill", "zookeeper")
    said = up("cluster", "status", "--check", code=1)
    assert "ZooKeeper is down: 'tidemill cluster start zookeeper' starts it" in said
    assert "brokers 1, 2, 3 without the coordination store" in said
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


def test_a_topic_deleted_while_a_broker_was_down_can_be_made_again_once_the_broker_is_removed(
    up: Call,
) -> None:
    bootstrap = ("-b", json.loads(up("cluster", "up", "--json"))["bootstrap"])
    up("topic", "create", "gone", *bootstrap)
    removed = next(number for number in (1, 2, 3) if number != status(up)["controller"])
    up("cluster", "kill", str(removed))
    up("topic", "delete", "gone", "--yes", *bootstrap)
    for option in ((), ("--if-not-exists",)):
        said = up("topic", "create", "gone", "--replication-factor", "1", *option, *bootstrap, code=1)
        assert f"waits for brokers [{removed}]: start them" in said
        assert f"'tidemill broker unregister {removed}'" in said
    assert up("cluster", "remove", str(removed)) == f"removed broker {removed}\n"
    said = up("topic", "create", "gone", "--replication-factor", "1", *bootstrap)
    assert said.startswith("created gone")


def test_deleting_a_cluster_leaves_what_is_not_of_it(call: Call) -> None:
    Path("mine.txt").write_text("kept")
    local = LocalCluster(".", "127.0.0.1:9/tidemill-cluster", None, {})
    with local.alone():
        local.add_brokers(2, 0, {})
    said = call("cluster", "down", "-d", ".", "--delete")
    assert said.splitlines()[-1] == "deleted the cluster; mine.txt in . stays: it is not of the cluster"
    assert [one.name for one in Path().iterdir()] == ["mine.txt"]


def test_what_is_missing_is_said_with_the_next_step(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "'tidemill cluster up' makes one" in call("cluster", "kill", "1", code=1)
    assert "there is no cluster in other" in call("cluster", "status", "-d", "other", code=1)
    monkeypatch.setenv("PATH", "")
    said = call("cluster", "up", "--port", "0", code=1)
    assert "install a Java runtime" in said
    assert "--zookeeper HOST:PORT" in said
    said = call("cluster", "up", "-z", f"127.0.0.1:{free_port()}", "--port", "0", code=1)
    assert "no ZooKeeper can be reached" in said
    assert "is not HOST:PORT" in call("cluster", "up", "-z", "nowhere", "--port", "0", code=2)
    assert not Path("tidemill-cluster").exists()
    said = call("cluster", "up", "--set", "num.partition=3", code=2)
    assert "num.partition is no key of the broker (--set); did you mean num.partitions?" in said
    assert "its own" in call("cluster", "up", "--set", "node.id=3", code=2)
    assert "0 is out of range" in call("cluster", "up", "--brokers", "0", code=2)


def test_a_cluster_that_is_there_keeps_its_zookeeper_and_its_brokers(call: Call) -> None:
    local = LocalCluster("tidemill-cluster", "127.0.0.1:9/tidemill-cluster", None, {})
    with local.alone():
        local.add_brokers(3, 0, {"num.partitions": "7", "tidemill.metrics.port": "9404"})
        assert "another command" in call("cluster", "stop", "1", code=1)
    keys = Path("tidemill-cluster/broker-2/server.properties").read_text().splitlines()
    assert {"num.partitions=7", "tidemill.metrics.port=9405"} < set(keys)
    assert "min.insync.replicas=2\n" in Path("tidemill-cluster/broker-3/server.properties").read_text()
    assert "is on ZooKeeper at" in call("cluster", "up", "-z", "127.0.0.1:10", code=1)
    assert "decommission" in call("cluster", "up", "--brokers", "2", code=1)
    assert "server.properties" in call("cluster", "up", "--set", "num.partitions=1", code=1)
    said = call("cluster", "up", "--port", "1", code=1)
    assert f"--port is for new brokers; those in tidemill-cluster keep theirs ({local.bootstrap})" in said
    assert "--brokers 4, or name another directory with -d" in said
    # What was asked for is what is there: there is no ZooKeeper to reach, which is looked at next.
    first = min(local.ports.values())
    assert "no ZooKeeper can be reached" in call("cluster", "up", "--port", str(first), code=1)
    assert "no ZooKeeper can be reached" in call("cluster", "up", "--port", "0", code=1)
    assert "1, 2, 3: give one of these" in call("cluster", "stop", "4", code=1)
    assert "no other broker runs" in call("cluster", "remove", "2", code=1)
    assert call("cluster", "down") == "nothing ran\n"
    Path("tidemill-cluster/cluster.json").write_text("{}")
    assert "repair it" in call("cluster", "down", code=1)


def test_values_that_no_broker_starts_with_are_refused_before_anything_is_written(call: Call) -> None:
    for key, value in (("num.partitions", "0"), ("min.insync.replicas", "x")):
        said = call("cluster", "up", "--port", "0", "--set", f"{key}={value}", code=1)
        assert f"{key}={value}: allowed is" in said
    with socket.create_server(("127.0.0.1", 0)) as listens:
        where = f"127.0.0.1:{listens.getsockname()[1]}/x/../y"
        assert "'/x/../y' is no node path" in call("cluster", "up", "-z", where, "--port", "0", code=1)
    assert [path.name for path in Path("tidemill-cluster").iterdir()] == ["lock"]


def test_each_broker_that_does_not_start_is_named(call: Call) -> None:
    local = LocalCluster("tidemill-cluster", f"127.0.0.1:{free_port()}", None, {})
    with local.alone():
        local.add_brokers(2, 0, {})
        for number in (1, 2):
            path = local.process(str(number)).directory / "server.properties"
            path.write_text(path.read_text() + f"num.partitions=-{number}\n")
        with pytest.raises(Exception, match=r"(?s)num.partitions=-.*\ntidemill: .*num.partitions=-"):
            list(local.start_brokers([1, 2]))


def test_what_goes_on_is_said_when_a_command_is_interrupted(tmp_path: Path, capsys: Any) -> None:
    local = LocalCluster(str(tmp_path), "127.0.0.1:1", 1, {})
    pid = local.process("zookeeper").start(["/bin/sh", "-c", "exec sleep 60"])
    try:
        with pytest.raises(KeyboardInterrupt), local.alone():
            raise KeyboardInterrupt
        assert f"ZooKeeper runs: 'tidemill cluster up -d {tmp_path}' starts what" in capsys.readouterr().err
    finally:
        os.kill(pid, signal.SIGKILL)
    assert local.process("zookeeper").wait_end(10)


def test_a_directory_that_is_named_goes_before_brokers_of_the_environment(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = LocalCluster("two", "127.0.0.1:9/x", None, {})
    with local.alone():
        local.add_brokers(1, 0, {})
    elsewhere = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("TIDEMILL_BOOTSTRAP", elsewhere)
    for command in (("status",), ("decommission", "1"), ("rebalance",), ("elect",)):
        assert "no broker of the cluster in two runs" in call("cluster", *command, "-d", "two", code=1)
    assert elsewhere in call("cluster", "status", code=1)
    assert elsewhere in call("cluster", "status", "-d", "two", "-b", elsewhere, code=1)
    monkeypatch.delenv("TIDEMILL_BOOTSTRAP")
    keys = ("-X", f"bootstrap.servers={elsewhere}")
    assert elsewhere in call("cluster", "status", *keys, code=1)
    assert "no broker of the cluster in two runs" in call("cluster", "status", "-d", "two", *keys, code=1)


def test_a_full_disk_is_said_to_be_full(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: LocalCluster) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LocalCluster, "save", full)
        patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
        said = call("cluster", "up", "--port", "0", code=1)
    assert said == "tidemill: there is no room left in tidemill-cluster: make some\n"


def test_a_process_of_another_user_is_named(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = LocalCluster("tidemill-cluster", "127.0.0.1:1", 1, {})
    with local.alone():
        local.save()
    pid = local.process("zookeeper").start(["/bin/sh", "-c", "exec sleep 60"])

    def refused(pid: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "kill", refused)
            said = f"ZooKeeper (process {pid}) is another user's: give the command as that one"
            assert said in call("cluster", "kill", "zookeeper", code=1)
            assert said in call("cluster", "stop", "zookeeper", code=1)
    finally:
        os.kill(pid, signal.SIGKILL)
    assert local.process("zookeeper").wait_end(10)


def test_a_process_whose_number_cannot_be_noted_is_ended(tmp_path: Path) -> None:
    (tmp_path / "one.pid").mkdir()
    with pytest.raises(IsADirectoryError):
        Background(tmp_path, "one").start(["/bin/sh", "-c", "exec sleep 60"])
    pid, _, started = (tmp_path / "one.pid.tmp").read_text().strip().partition(" ")
    (tmp_path / "two.pid").write_text(f"{pid} {started}\n")
    assert Background(tmp_path, "two").wait_end(10)


def test_a_port_that_another_broker_of_the_cluster_has_is_refused(call: Call) -> None:
    local = LocalCluster("tidemill-cluster", "127.0.0.1:9/x", None, {})
    port = free_port()
    with local.alone():
        local.add_brokers(1, port, {})
    with pytest.raises(click.ClickException) as refused:
        local.add_brokers(1, port, {}, is_exact=True)
    said = f"port {port} is that of broker 1 of this cluster: give another one, or leave --port out for "
    assert refused.value.message == f"{said}{port + 1}"
    assert list(LocalCluster.existing("tidemill-cluster").ports) == [1]


def test_a_port_in_use_is_named(call: Call) -> None:
    port = free_port()
    local = LocalCluster("tidemill-cluster", "127.0.0.1:9/x", None, {})
    with local.alone():
        local.add_brokers(1, port, {})
    with socket.create_server(("127.0.0.1", port)), pytest.raises(Exception, match=f"port {port} is in use"):
        next(local.start_brokers([1]))


def test_ports_in_use_are_named_before_anything_is_started_or_written(call: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = call("cluster", "up", "--brokers", "2", "--port", str(port), code=1)
        assert f"port {port} is in use by process {os.getpid()} (" in said
        assert LocalCluster.load("tidemill-cluster") is None
        assert [path.name for path in Path("tidemill-cluster").iterdir()] == ["lock"]
        # Of brokers that there are, too, one of them the last: the others are not started.
        local = LocalCluster("tidemill-cluster", f"127.0.0.1:{free_port()}", free_port(), {})
        with local.alone():
            local.add_brokers(1, free_port(), {})
            local.ports[2] = port
            local.save()
        assert f"port {port} is in use" in call("cluster", "up", code=1)
        assert local.running() == {}


def test_a_zookeeper_that_runs_is_found_where_it_listens(tmp_path: Path) -> None:
    local = LocalCluster(str(tmp_path), "127.0.0.1:1", 1, {})
    process = local.process("zookeeper")
    process.directory.mkdir(parents=True)
    (process.directory / "zoo.cfg").write_text("dataDir=/x\nclientPort=2999\nadmin.enableServer=false\n")
    assert LocalCluster.new(str(tmp_path), None, True).own_port != 2999  # it does not run
    pid = process.start(["/bin/sh", "-c", "exec sleep 60"])
    try:
        found = LocalCluster.new(str(tmp_path), None, False)
        assert (found.own_port, found.zookeeper_connect) == (2999, "127.0.0.1:2999")
    finally:
        os.kill(pid, signal.SIGKILL)
    assert process.wait_end(10)


def test_a_process_number_that_is_used_again_is_not_taken_for_ours(tmp_path: Path) -> None:
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


def test_a_process_that_was_halted_is_not_waited_for(tmp_path: Path) -> None:
    local = LocalCluster(str(tmp_path / "of mine"), "127.0.0.1:1", 1, {})
    process = local.process("zookeeper")
    pid = process.start(["/bin/sh", "-c", "exec sleep 60"])
    try:
        assert not process.stands_still
        os.kill(pid, signal.SIGSTOP)
        while not process.stands_still:
            os.sched_yield()
        said = rf"'kill -CONT {pid}' lets it, 'tidemill cluster kill zookeeper -d '/.*/of mine'' ends it"
        with pytest.raises(Exception, match=said):
            local.stop("zookeeper")
    finally:
        os.kill(pid, signal.SIGKILL)
    assert process.wait_end(10)


def test_a_broker_that_ended_unnoticed_is_not_shown_as_living(up: Call) -> None:
    up("cluster", "kill", "zookeeper", "2")
    found = status(up)
    assert [one["living"] for one in found["brokers"]] == [True, False, True]
    assert (found["unnoticed"], found["zookeeper"]["pid"]) == ([2], None)
    up("cluster", "status", "--check", code=1)
    lines = up("cluster", "start", "2").splitlines()
    assert [line.partition(" runs on ")[0] for line in lines] == ["ZooKeeper", "broker 2"]
    found = status(up, "--check")
    assert (found["unnoticed"], [one["living"] for one in found["brokers"]]) == ([], [True] * 3)


def test_a_port_that_was_changed_in_a_brokers_file_is_the_one_that_counts(tmp_path: Path) -> None:
    local = LocalCluster(str(tmp_path), "127.0.0.1:9/x", None, {})
    with local.alone():
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
    # Until it is started again, a broker listens where it said.
    process = local.process("1")
    pid = process.start(["/bin/sh", "-c", "exec sleep 60"])
    try:
        ready = first.with_name("ready.json")
        for said, port in ((f'{{"pid": {pid}, "listeners": [{{"port": 77}}]}}', 77), ('{"pid": 1}', 2999)):
            ready.write_text(said)
            found = LocalCluster.load(str(tmp_path))
            assert found is not None
            assert found.ports[1] == port
    finally:
        os.kill(pid, signal.SIGKILL)
    assert process.wait_end(10)
