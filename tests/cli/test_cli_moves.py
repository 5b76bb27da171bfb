"""Commands that move partitions and leaderships, with a cluster of ``tidemill cluster up``."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_process import commands

from tidemill.cli import reassignment_progress, throttles
from tidemill.cli.local_cluster import LocalCluster
from tidemill.cli.main import run
from tidemill.cli.reassignment_plans import (
    read_partitions,
    read_plan,
    read_topics,
    text,
)
from tidemill.client import Admin, ConfigResource, Producer, ResourceType
from tidemill.client.admin_types import PartitionReassignment, TopicDescription
from tidemill.model.types import TopicPartition

Call = Callable[..., str]

WAIT_S = 30.0
REPORTED_S = 5.0
"""Three seconds are the promise; the rest is for a machine that gives the command no time."""

MESSAGE_BYTES = 900_000


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Four brokers for the tests of this module; each test leaves all of them running."""
    directory = str(tmp_path_factory.mktemp("moves") / "cluster")
    try:
        assert run(["cluster", "up", "-n", "4", "--port", "0", "-d", directory]) == 0
        yield LocalCluster.existing(directory)
    finally:
        found = LocalCluster.load(directory)
        for name in found.names if found is not None else ():
            found.kill(name)  # type: ignore[union-attr]


@pytest.fixture
def call(local: LocalCluster, capfdbinary: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs one command line; returns its output. ``code`` is the expected exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TIDEMILL_CLUSTER_DIR", str(local.directory))
    monkeypatch.delenv("TIDEMILL_BOOTSTRAP", raising=False)

    def called(*arguments: str, code: int = 0) -> str:
        capfdbinary.readouterr()
        if arguments[0] == "topic":
            arguments = (*arguments, "-b", local.bootstrap)
        outcome = run(arguments)
        captured: tuple[bytes, bytes] = capfdbinary.readouterr()
        out, err = (one.decode() for one in captured)
        assert outcome == code, (out, err)
        return out if code == 0 else out + err

    return called


def replicas(local: LocalCluster, topic: str) -> dict[int, list[int]]:
    with Admin(local.bootstrap) as admin:
        return {one.partition: one.replicas for one in admin.describe_topic(topic).partitions}


def leaders(local: LocalCluster, topic: str) -> list[int]:
    with Admin(local.bootstrap) as admin:
        return [one.leader for one in admin.describe_topic(topic).partitions]


def isr(local: LocalCluster, topic: str) -> list[list[int]]:
    with Admin(local.bootstrap) as admin:
        return [one.isr for one in admin.describe_topic(topic).partitions]


def make(local: LocalCluster, topic: str, placed: dict[int, list[int]]) -> None:
    with Admin(local.bootstrap) as admin:
        admin.create_topic(topic, assignments=placed, configs={"min.insync.replicas": "1"})


def written(local: LocalCluster, topic: str, count: int = 1) -> None:
    """Writes that many messages to each partition."""
    value = os.urandom(MESSAGE_BYTES)
    with Producer(local.bootstrap) as producer:
        for number in replicas(local, topic):
            for _ in range(count):
                producer.send(topic, value, partition=number)
        producer.flush()


def until(condition: Callable[[], bool], what: str, seen: Callable[[], object] = str) -> None:
    """Waits for ``condition``; the error has ``what`` and the last ``seen`` state."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"it never came about: {what} {seen()}")
        time.sleep(0.05)


def settled(call: Call) -> list[dict[str, Any]]:
    """Returns the brokers once all know that every replica is in sync and every preferred replica leads. Some
    brokers learn it a moment later.
    """
    found: dict[str, Any] = {}

    def is_well() -> bool:
        found.update(json.loads(call("cluster", "status", "--json")))
        return not found["under_replicated"] and all(
            one["leads"] == one["preferred"] for one in found["brokers"]
        )

    until(is_well, "all are in sync, and preferred replicas lead", lambda: found)
    brokers: list[dict[str, Any]] = found["brokers"]
    return brokers


def recovered(call: Call) -> None:
    """Waits until every replica is in sync and preferred replicas lead, as the next test expects."""
    until(lambda: not json.loads(call("cluster", "status", "--json"))["under_replicated"], "all are in sync")
    call("cluster", "elect")


def test_a_plan_is_generated_executed_and_verified(local: LocalCluster, call: Call) -> None:
    make(local, "planned", {0: [1, 2], 1: [2, 1]})
    Path("topics.json").write_text('{"version": 1, "topics": [{"topic": "planned"}]}')
    plan = call("reassign", "generate", "topics.json", "--brokers", "3,4", "--current", "before.json")
    Path("plan.json").write_text(plan)
    assert {tuple(sorted(entry["replicas"])) for entry in json.loads(plan)["partitions"]} == {(3, 4)}
    assert "not as planned" in call("reassign", "verify", "plan.json", code=1)
    call("reassign", "execute", "plan.json")
    call("reassign", "verify", "plan.json", "--wait")
    found = json.loads(call("reassign", "verify", "plan.json", "--json"))
    assert [entry["state"] for entry in found["partitions"]] == ["done", "done"]
    call("reassign", "execute", "before.json", "--wait")
    assert replicas(local, "planned") == {0: [1, 2], 1: [2, 1]}
    assert "99" in call("reassign", "generate", "-t", "planned", "--brokers", "99", code=1)
    message = call("reassign", "generate", "-t", "planned", "--brokers", "3", code=1)
    assert "--brokers 3: planned-0 has 2 replicas, each on a different broker" in message
    call("reassign", "generate", code=2)


def test_a_plan_names_directories(local: LocalCluster, call: Call) -> None:
    make(local, "placed", {0: [1]})
    with Admin(local.bootstrap) as admin:
        directory = admin.describe_log_dirs([2])[2][0].path
    entry = {"topic": "placed", "partition": 0, "replicas": [2, 1], "log_dirs": [directory, "any"]}
    Path("plan.json").write_text(json.dumps({"version": 1, "partitions": [entry]}))
    call("reassign", "execute", "plan.json", "--wait")
    call("reassign", "verify", "plan.json")
    Path("plan.json").write_text(
        json.dumps({"version": 1, "partitions": [{**entry, "log_dirs": ["/none", "any"]}]})
    )
    assert "LOG_DIR_NOT_FOUND" in call("reassign", "execute", "plan.json", "--wait", code=1)
    assert "not as planned" in call("reassign", "verify", "plan.json", code=1)


def test_a_throttled_move_is_listed_refuses_another_and_is_cancelled(local: LocalCluster, call: Call) -> None:
    make(local, "slow", {0: [1]})
    written(local, "slow", 30)
    Path("plan.json").write_text(text({TopicPartition("slow", 0): [2]}))
    call("reassign", "execute", "plan.json", "--throttle", "1", "--timeout", "1ms", "--wait", code=1)
    (move,) = json.loads(call("reassign", "list", "--json"))
    assert (
        move["topic"],
        move["adding"],
        move["removing"],
    ) == ("slow", [2], [1])
    assert move["total_bytes"] > 30 * MESSAGE_BYTES
    assert "--additional" in call("reassign", "execute", "plan.json", code=1)
    assert json.loads(call("cluster", "status", "--json"))["moving"] == 1
    assert "moving" in call("reassign", "verify", "plan.json", code=1)
    assert throttled_replicas(local, "slow") == [["0:1", "0:2"]] * 4
    with Admin(local.bootstrap) as admin:
        assert admin.broker_configs(2)[throttles.RATES[1]].value == "1"
    assert call("reassign", "cancel", "plan.json") == "cancelled 1 move\nthrottles removed\n"
    with Admin(local.bootstrap) as admin:
        until(lambda: admin.topic_configs("slow")[throttles.REPLICAS[1]].is_default, "it is taken back")
        until(lambda: admin.broker_configs(2)[throttles.RATES[1]].is_default, "of the broker, too")
    assert replicas(local, "slow") == {0: [1]}
    # The requested broker may not know yet that the throttles are removed.
    assert call("reassign", "cancel", "--all").startswith("no moves in progress\n")


def throttled_replicas(local: LocalCluster, topic: str) -> list[list[str | None]]:
    """Returns the throttled replicas of a topic on each broker: of leaders, of followers."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    with Admin(local.bootstrap) as admin:
        found = [admin.describe_configs(resource, broker=broker) for broker in (1, 2, 3, 4)]
    return [[one[key].value for key in throttles.REPLICAS] for one in found]


def test_moves_stay_throttled_while_others_begin_and_end(local: LocalCluster, call: Call) -> None:
    topic = f"both-{time.monotonic_ns()}"
    make(local, topic, {0: [1], 1: [1]})
    written(local, topic, 90)
    for number in (0, 1):
        Path(f"plan-{number}.json").write_text(text({TopicPartition(topic, number): [2]}))
    call("reassign", "execute", "plan-0.json", "--throttle", "1")
    assert throttled_replicas(local, topic) == [["0:1", "0:2"]] * 4
    call("reassign", "execute", "plan-1.json", "--throttle", "1", "--additional")
    assert throttled_replicas(local, topic) == [["0:1,1:1", "0:2,1:2"]] * 4
    assert call("reassign", "cancel", "plan-1.json") == "cancelled 1 move\n"
    with Admin(local.bootstrap) as admin:
        assert not admin.topic_configs(topic)[throttles.REPLICAS[1]].is_default
        assert admin.broker_configs(2)[throttles.RATES[1]].value == "1"
    assert call("reassign", "cancel", "--all") == "cancelled 1 move\nthrottles removed\n"
    call("topic", "delete", topic, "--yes")


def test_throttles_of_ended_moves_and_unnamed_topics_are_removed(local: LocalCluster, call: Call) -> None:
    make(local, "once", {0: [1]})
    plan = {TopicPartition("once", 0): [2]}
    Path("plan.json").write_text(text(plan))
    call("reassign", "execute", "plan.json", "--throttle", "1000000")
    with Admin(local.bootstrap) as admin:
        until(lambda: not admin.list_reassignments(plan), "it is there")
    assert call("reassign", "execute", "plan.json") == "1 partition as planned already\n"
    assert call("reassign", "cancel", "--all") == "no moves in progress\nthrottles removed\n"
    with Admin(local.bootstrap) as admin:
        until(lambda: admin.topic_configs("once")[throttles.REPLICAS[1]].is_default, "it is taken back")


def test_a_broker_with_leaving_partitions_is_not_reported_as_empty(local: LocalCluster, call: Call) -> None:
    with Admin(local.bootstrap) as admin:  # No other partition may need to move.
        admin.delete_topics([topic.name for topic in admin.list_topics()])
    make(local, "leaving", {0: [4]})
    written(local, "leaving", 30)
    slowly = ("cluster", "decommission", "4", "--yes", "--throttle", "1")
    try:
        assert "still moving" in call(*slowly, "--timeout", "1ms", code=1)
        again = call("cluster", "decommission", "4", "--yes", "--timeout", "1ms", code=1)
        assert "already moving off broker 4" in again
        assert "holds no replicas" not in again
        assert "still moving" in again
    finally:
        call("reassign", "cancel", "--all")
    assert replicas(local, "leaving") == {0: [4]}
    recovered(call)


def test_a_move_that_ends_while_it_is_cancelled_is_no_error(
    local: LocalCluster, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(local, "arrived", {0: [2]})
    ended = {TopicPartition("arrived", 0): PartitionReassignment([1, 2], [2], [1])}
    monkeypatch.setattr(Admin, "list_reassignments", lambda admin, partitions=None: ended)
    assert call("reassign", "cancel", "--all") == "no moves in progress\n"
    assert replicas(local, "arrived") == {0: [2]}


def test_replicas_removed_without_a_brokers_knowledge_are_not_planned(
    local: LocalCluster, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(local, "stale", {0: [1, 2]})
    real, stale = Admin.describe_topics, [True]

    def describe_topics(admin: Admin, names: list[str]) -> dict[str, TopicDescription]:
        found = real(admin, names)
        if "stale" in names and stale:
            stale.pop()
            found["stale"].partitions[0].replicas.append(3)
        return found

    monkeypatch.setattr(Admin, "describe_topics", describe_topics)
    assert call("topic", "alter", "stale", "-r", "2") == "stale: every partition already has 2 replicas\n"
    assert not stale


def test_the_replication_factor_of_a_topic_is_raised_and_lowered(
    local: LocalCluster, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassignment_progress, "on_terminal", lambda: True)
    make(local, "grown", {0: [1], 1: [2]})
    written(local, "grown")
    call("topic", "alter", "grown", "--replication-factor", "3", "--dry-run")
    assert replicas(local, "grown") == {0: [1], 1: [2]}
    assert "every partition has 3 replicas" in call("topic", "alter", "grown", "--replication-factor", "3")
    found = replicas(local, "grown")
    assert [(len(set(one)), one[0]) for one in found.values()] == [(3, 1), (3, 2)]
    with Admin(local.bootstrap) as admin:
        assert not any(one.under_replicated for one in admin.describe_topic("grown").partitions)
    call("topic", "alter", "grown", "-r", "2", "--throttle", "100000000")
    assert [len(one) for one in replicas(local, "grown").values()] == [2, 2]
    assert "replication factor of 5 is not possible with 4 broker(s)" in call(
        "topic", "alter", "grown", "-r", "5", code=1
    )


def test_a_topic_with_one_replica_accepts_acks_all(local: LocalCluster, call: Call, capfdbinary: Any) -> None:
    Path("line").write_text("kept\n")
    call("topic", "create", "single", "-p", "1", "-r", "1")
    with Admin(local.bootstrap) as admin:
        assert admin.topic_configs("single")["min.insync.replicas"].value == "2"
    assert run(["produce", "single", "--file", "line", "-X", "acks=all", "-b", local.bootstrap]) == 0
    assert run(["consume", "single", "--from-beginning", "-n", "1", "-b", local.bootstrap]) == 0
    assert b"kept" in capfdbinary.readouterr().out


def test_long_unacknowledged_messages_are_reported_with_the_reason(
    local: LocalCluster, call: Call, capfdbinary: Any
) -> None:
    Path("line").write_text("held back\n")
    with Admin(local.bootstrap) as admin:
        admin.create_topic("refusing", assignments={0: [1, 3]}, configs={"min.insync.replicas": "2"})
    call("cluster", "kill", "3")
    try:
        until(lambda: isr(local, "refusing") == [[1]], "the dead broker is out of the in-sync set")
        brief = ("-X", "delivery.timeout.ms=6000", "-X", "request.timeout.ms=1000")
        assert run(["produce", "refusing", "--file", "line", *brief, "-b", local.bootstrap]) == 1
        err = capfdbinary.readouterr().err.decode()
    finally:
        call("cluster", "start", "3")
    assert "warning: 1 message for refusing-0 not acknowledged for 3 s, retried for 6 s at most: " in err
    assert err.count("NOT_ENOUGH_REPLICAS") == 2
    assert "(1 message sent, 0 acknowledged; 1 without acknowledgement may or may not be stored" in err
    recovered(call)


def test_a_group_with_a_leaderless_partition_is_described(local: LocalCluster, call: Call) -> None:
    make(local, "half", {0: [1], 1: [3]})
    with Admin(local.bootstrap) as admin:
        admin.alter_group_offsets("half-readers", {TopicPartition("half", number): 0 for number in (0, 1)})
    call("cluster", "kill", "3")
    try:
        until(lambda: leaders(local, "half") == [1, -1], "the dead broker leads nothing")
        described = call("group", "describe", "half-readers", "-b", local.bootstrap, "--json")
    finally:
        call("cluster", "start", "3")
    found = [(one["start"], one["end"], one["lag"]) for one in json.loads(described)[0]["partitions"]]
    assert found == [(0, 0, 0), (None, None, None)]
    recovered(call)


def test_a_leaderless_partition_is_reported_within_seconds_and_so_is_its_new_leader(
    local: LocalCluster, call: Call
) -> None:
    make(local, "lone", {0: [3]})
    where = ("-b", local.bootstrap)
    with commands(
        ["produce", "lone", *where],
        ["consume", "lone", "--from-beginning", *where],
        ["consume", "lone", "--from-beginning", "-g", "lone-readers", *where],
    ) as (produce, alone, member):
        produce.write("first\n")
        alone.wait_for_line("^first$", where="out")
        member.wait_for_line("^first$", where="out")
        at = time.monotonic()
        call("cluster", "kill", "3")
        try:
            produce.write("second\n")
            assert (
                produce.wait_for_line("^warning: 1 message for lone-0 not acknowledged for", after=at)
                < REPORTED_S
            )
            for reader in (alone, member):
                assert reader.wait_for_line("^warning: lone-0 cannot be read for", after=at) < REPORTED_S
            until(lambda: leaders(local, "lone") == [-1], "it has no leader")
            with commands(["consume", "lone", *where], ["produce", "lone", *where]) as late:
                late[1].write("third\n")
                for command in late:
                    command.wait_for_line("^warning: .*LEADER_NOT_AVAILABLE; wait for an election")
        finally:
            call("cluster", "start", "3")
        produce.wait_for_line("^messages for lone-0 are acknowledged again$", after=at)
        for reader in (alone, member):
            reader.wait_for_line("^lone-0 can be read again$", after=at)
            reader.wait_for_line("^second$", where="out")
    recovered(call)


def test_a_stopped_coordinator_is_reported_and_so_is_its_return(local: LocalCluster, call: Call) -> None:
    with Admin(local.bootstrap) as admin:
        coordinator = admin._network_client.find_coordinator("stopped-readers", time.monotonic() + WAIT_S)
    other = coordinator % 4 + 1
    make(local, "led", {0: [other]})
    arguments = ["consume", "led", "--from-beginning", "-g", "stopped-readers", "-b", local.bootstrap]
    with commands(arguments) as (member,):
        with Producer(local.bootstrap) as producer:
            producer.send("led", b"first").result(30)
        member.wait_for_line("^first$", where="out")
        pid = local.process(str(coordinator)).pid()
        assert pid is not None
        at = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        try:
            told = "^warning: group stopped-readers waits for its coordinator .* has not answered"
            assert member.wait_for_line(told, after=at) < REPORTED_S
        finally:
            os.kill(pid, signal.SIGCONT)
        member.wait_for_line("^the coordinator of group stopped-readers responds again$", after=at)
        assert not [line for line in member.errors() if "cannot be read" in line]
    recovered(call)


def test_moves_that_wait_for_a_dead_broker_are_named(local: LocalCluster, call: Call) -> None:
    make(local, "only", {0: [3]})
    call("cluster", "kill", "3")
    try:
        until(lambda: leaders(local, "only") == [-1], "it has no leader")
        Path("plan.json").write_text(text({TopicPartition("only", 0): [1]}))
        waits = ("--wait", "--timeout", "1ms")
        assert "no leader for only-0: " in call("reassign", "execute", "plan.json", *waits, code=1)
    finally:
        call("cluster", "start", "3")
    call("reassign", "verify", "plan.json", "--wait")
    recovered(call)


def planned_moves(printed: str, topic: str, count_min: int) -> None:
    """Checks the output of a command that only shows its plan, because there is no terminal."""
    moves = [line for line in printed.splitlines() if line.startswith(f"  {topic}-") and " → " in line]
    assert len(moves) >= count_min, printed
    assert "would change" in printed
    assert printed.endswith("tidemill: nothing was done; --yes executes this\n")


def test_a_broker_is_emptied_and_rebalanced(local: LocalCluster, call: Call) -> None:
    make(local, "shared", {0: [4, 1], 1: [4, 2], 2: [4, 3], 3: [1, 4]})
    written(local, "shared")
    planned_moves(call("cluster", "decommission", "4", code=1), "shared", 3)
    planned = json.loads(call("cluster", "decommission", "4", "--json"))
    assert all(4 not in entry["replicas"] for entry in planned["partitions"])
    message = call("cluster", "decommission", "4", "--yes", "--throttle", "100000000")
    assert message.endswith("broker 4 holds no replicas any more: 'tidemill cluster stop 4' stops it\n")
    held = {one["id"]: one for one in settled(call)}
    assert (held[4]["replicas"], held[4]["leads"]) == (0, 0)
    planned_moves(call("cluster", "rebalance", code=1), "shared", 1)
    assert all(4 not in one for one in replicas(local, "shared").values())
    call("cluster", "rebalance", "--yes")
    found = settled(call)
    counts = [one["replicas"] for one in found]
    assert max(counts) - min(counts) <= 1
    assert [one["leads"] for one in found] == [one["preferred"] for one in found]
    assert json.loads(call("cluster", "rebalance", "--json"))["partitions"] == []
    assert "nothing has to move" in call("cluster", "rebalance")
    assert "there is no broker 99" in call("cluster", "decommission", "99", code=1)


def test_preferred_replicas_are_elected_and_failed_elections_are_reported(
    local: LocalCluster, call: Call
) -> None:
    make(local, "elected", {0: [3, 1], 1: [1, 3]})
    make(local, "alone", {0: [3]})
    call("cluster", "kill", "3")
    try:
        until(lambda: leaders(local, "elected") == [1, 1], "broker 1 leads in its place")
        message = call("cluster", "elect", "elected", "-p", "0", code=1)
        assert "PREFERRED_LEADER_NOT_AVAILABLE" in message
        assert "--yes" in call("topic", "elect", "alone", "--unclean", code=1)
        message = call("topic", "elect", "alone", "-p", "0", "--unclean", "--yes", code=1)
        assert "ELIGIBLE_LEADERS_NOT_AVAILABLE" in message
    finally:
        call("cluster", "start", "3")
    Path("election.json").write_text('{"partitions": [{"topic": "elected", "partition": 1}]}')
    assert call("cluster", "elect", "--file", "election.json") == "no election was needed\n"
    with Admin(local.bootstrap) as admin:
        until(
            lambda: not any(one.under_replicated for one in admin.describe_topic("elected").partitions),
            "all are in sync again",
        )
    call("cluster", "elect", "--json")
    until(lambda: leaders(local, "elected") == [3, 1], "preferred replicas lead")
    call("cluster", "elect", "elected", "other", "-p", "0", code=2)
    call("cluster", "elect", "elected", "--file", "election.json", code=2)


def refused(content: str, read: Callable[[str], Any]) -> str:
    import click

    Path("given").write_text(content)
    with pytest.raises(click.ClickException) as told:
        read("given")
    return told.value.message


def test_errors_in_a_plan_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = {"topic": "t", "partition": 0, "replicas": [1, 2]}

    def plan(*entries: Any) -> str:
        return json.dumps({"version": 1, "partitions": entries})

    plans = {TopicPartition("t", 0): [1, 2]}
    Path("given").write_text(plan(whole))
    assert read_plan("given") == (plans, {})
    Path("given").write_text(text(plans))
    assert read_plan("given") == (plans, {})
    assert json.loads(text({})) == {"version": 1, "partitions": []}
    for given, error in (
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"version": 2, "partitions": []}', '"version": 1'),
        (plan(), "nothing to do"),
        (plan(7), "partitions[0] must be an object"),
        (plan(whole, whole), "partitions[1]: t-0 is listed twice"),
        *[
            (plan({**whole, "replicas": replicas}), "given: partitions[0]")
            for replicas in ([], [1, 1], ["1"], [True], [-1], None, [1.5])
        ],
    ):
        assert error in refused(given, read_plan)
    for number in (-1, "0", None, True, 2**31):
        assert '"partition" must be' in refused(plan({**whole, "partition": number}), read_plan)
    assert '"topic" must be' in refused(plan({**whole, "topic": ""}), read_plan)
    for directories in (["any", "disk"], ["any"], "any", ["any", None]):
        assert '"log_dirs"' in refused(plan({**whole, "log_dirs": directories}), read_plan)
    Path("given").write_text(plan({**whole, "log_dirs": ["any", "/disk"]}))
    assert read_plan("given") == (plans, {2: {TopicPartition("t", 0): "/disk"}})
    assert "names no" not in refused('{"topics": [{}]}', read_topics)
    Path("given").write_text('{"topics": [{"topic": "a"}, {"topic": "b"}], "version": 1}')
    assert read_topics("given") == ["a", "b"]
    Path("given").write_text('{"partitions": [{"topic": "a", "partition": 3}]}')
    assert read_partitions("given") == [TopicPartition("a", 3)]


def test_the_help_of_a_throttle_has_the_window_of_its_mean(call: Call) -> None:
    for command in (("reassign", "execute"), ("cluster", "decommission"), ("cluster", "rebalance")):
        assert "as a mean over the last 11 s" in " ".join(call(*command, "--help").split())
