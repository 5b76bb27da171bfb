"""The checker detects brokers that apply wrong requests, and controllers that lose or repeat requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import commands_promise
import pytest
from commands_promise import CommandsPromise
from simulated_disk import SimulatedFiles
from simulated_loop import SimulatedLoop

from tidemill.broker.controller_channel_manager import ControllerChannel
from tidemill.broker.controller_request_batch import ControllerRequestBatch, ReplicaStop
from tidemill.broker.controller_request_handler import ControllerRequestHandler
from tidemill.broker.controller_requests import DURING_DELETION, FULL_REQUEST
from tidemill.coordination.topic_image import PartitionImage
from tidemill.log.checkpoint_files import render_checkpoint
from tidemill.log.file_names import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from tidemill.log.log_directories import DataDirectory
from tidemill.model.errors import ErrorCode
from tidemill.net.link import LinkError
from tidemill.wire.messages.stop_replica import StopReplicaPartitionError, StopReplicaResponse

NODE = 1
KEY = ("t", b"t" * 16)
STATE = PartitionImage(0, NODE, 3, [NODE, 2], [NODE])
LATER = PartitionImage(0, 2, 4, [NODE, 2], [2])
GONE = PartitionImage(0, DURING_DELETION, DURING_DELETION, [], [])
NOTHING = SimpleNamespace(controller_epoch=5, broker_epoch=10, type=FULL_REQUEST, topic_states=[])


class ProgramObject(SimpleNamespace):
    """Replaces an object of the program."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class Watched:
    """A checker, and its findings."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.promise = CommandsPromise(lambda name, text: self.found.append(f"{name}: {text}"))


def partition(leader_epoch: int = 3, *, leads: bool = True, topic: str = "t") -> Any:
    """A replica of a broker."""
    return SimpleNamespace(
        topic=topic, index=0, is_leader=leads, is_offline=False, leader_epoch=leader_epoch, partition_epoch=0
    )


def commands(*replicas: Any, registered: int = 10) -> ControllerRequestHandler:
    """Returns a broker with these replicas that applies requests."""
    partitions = SimpleNamespace(
        logs=SimpleNamespace(get=lambda key: None, files=None),
        all=lambda: list(replicas),
        find=lambda topic, index: next((one for one in replicas if one.topic == topic), None),
    )
    topics = {"t": SimpleNamespace(topic_id=KEY[1], partition=lambda index: STATE)}
    applier = ProgramObject(broker_epoch=registered, controller_epoch=0)
    return cast(
        ControllerRequestHandler,
        ProgramObject(
            _node_id=NODE,
            _replica_manager=partitions,
            _metadata_cache=SimpleNamespace(image=SimpleNamespace(topics=topics)),
            _applier=applier,
        ),
    )


def request(
    state: PartitionImage = STATE, controller_epoch: int = 5, broker_epoch: int = 10, whole: bool = False
) -> Any:
    """Returns a request on one partition."""
    one = SimpleNamespace(
        partition_index=0,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=0,
        replicas=list(state.replicas),
        delete_partition=True,
    )
    topic = SimpleNamespace(topic_name="t", topic_id=KEY[1], partition_states=[one])
    return SimpleNamespace(
        controller_epoch=controller_epoch,
        broker_epoch=broker_epoch,
        type=FULL_REQUEST if whole else 0,
        topic_states=[topic],
    )


def confirmed() -> Any:
    """Returns a successful response on one partition."""
    one = SimpleNamespace(topic_name="t", partition_index=0, error_code=0)
    return SimpleNamespace(
        error_code=0, topics=[SimpleNamespace(partition_errors=[one])], partition_errors=[one]
    )


@pytest.fixture
def obey(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """A broker acknowledges requests without applying them; returns the findings."""

    async def confirm(*of: Any) -> Any:
        return confirmed()

    for name in ("LEADER_AND_ISR", "UPDATE_METADATA", "STOP_REPLICA"):
        monkeypatch.setattr(commands_promise, name, confirm)

    def play(to: ControllerRequestHandler, *wanted: tuple[str, Any, int]) -> list[str]:
        watched = Watched()

        async def story() -> None:
            for what, body, connection in wanted:
                await getattr(watched.promise, what)(to, body, connection)

        asyncio.run(story())
        return watched.found

    return play


def test_confirmed_and_executed_requests_break_no_promise(obey: Callable[..., list[str]]) -> None:
    to = commands(partition())
    wanted = [
        ("_leader_and_isr", request(whole=True), 1),
        ("_update_metadata", request(), 1),
        ("_leader_and_isr", request(controller_epoch=6), 7),
        ("_update_metadata", request(controller_epoch=6), 8),
    ]
    assert obey(to, *wanted) == []
    assert obey(commands(), ("_stop_replica", request(), 1)) == []


@pytest.mark.parametrize(
    ("second", "connection", "text"),
    [
        (request(controller_epoch=4), 8, "applies a request of the controller of epoch 4"),
        (request(broker_epoch=9), 8, "applies a request for its epoch 9"),
        (request(), 6, "applies a request over connection 6 after 7"),
    ],
)
def test_a_request_of_a_former_controller_registration_or_connection_is_found(
    obey: Callable[..., list[str]], second: Any, connection: int, text: str
) -> None:
    wanted = [("_update_metadata", request(), 7), ("_update_metadata", second, connection)]
    (found,) = obey(commands(partition()), *wanted)
    assert text in found


@pytest.mark.parametrize(
    ("what", "replicas", "body", "text"),
    [
        ("_leader_and_isr", [partition(2)], request(), "has not applied it"),
        ("_leader_and_isr", [], request(), "has not applied it"),
        ("_update_metadata", [], request(LATER), "and returns"),
        ("_update_metadata", [], request(GONE), "t is deleted, and returns it"),
        ("_update_metadata", [], NOTHING, "returns ['t']"),
        ("_stop_replica", [partition()], request(), "is stopped, and has it"),
        ("_update_metadata", [partition(topic="u")], request(whole=True), "keeps u-0"),
        ("_leader_and_isr", [partition()], request(LATER, whole=True), "2 leads in epoch 4"),
    ],
)
def test_a_confirmed_but_not_executed_request_is_found(
    obey: Callable[..., list[str]], what: str, replicas: list[Any], body: Any, text: str
) -> None:
    assert any(text in one for one in obey(commands(*replicas), (what, body, 1)))


@pytest.mark.parametrize("name", [RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS])
def test_a_deletion_confirmed_before_its_checkpoints_is_found(
    obey: Callable[..., list[str]], name: str
) -> None:
    to = commands()
    files = SimulatedFiles(cast(SimulatedLoop, SimpleNamespace(time=lambda: 0.0, is_in_job=False)))
    files.make_directory("/data")
    directory = DataDirectory(files, "/data", {})
    dirs = SimpleNamespace(online=[directory])
    cast(Any, to)._replica_manager.logs = SimpleNamespace(get=lambda key: None, files=files, dirs=dirs)
    wanted = ("_stop_replica", request(), 1)
    files.replace(f"/data/{name}", render_checkpoint(["u 0 5"]))
    assert obey(to, wanted) == []
    files.replace(f"/data/{name}", render_checkpoint(["u 0 5", "t 0 7"]))
    written = [directory.recovery_points, directory.start_offsets, directory.high_watermarks]
    for one in written:
        one._is_known = True
    (found,) = obey(to, wanted)
    assert f"/data/{name} contains it" in found
    # A failed write is retried.
    for one in written:
        one._is_known = False
    assert obey(to, wanted) == []


def test_a_replica_removed_by_a_late_request_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()
    monkeypatch.setattr(commands_promise, "STOP", lambda *of: ErrorCode.NONE)
    state = SimpleNamespace(partition_index=0, leader_epoch=3)
    watched.promise._stop(commands(partition(3)), "t", state)
    assert watched.found == []
    watched.promise._stop(commands(partition(4)), "t", state)
    assert "has a later replica in epoch 4" in watched.found[0]


def test_an_offset_request_in_another_leader_epoch_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched()
    monkeypatch.setattr(commands_promise, "LOOK_UP", lambda *of: None)
    led, follower = partition(4), SimpleNamespace(replica_id=2)
    consumer = SimpleNamespace(replica_id=-1)
    watched.promise._look_up(led, SimpleNamespace(current_leader_epoch=4), follower)
    watched.promise._look_up(led, SimpleNamespace(current_leader_epoch=-1), consumer)
    assert watched.found == []
    watched.promise._look_up(led, SimpleNamespace(current_leader_epoch=-1), follower)
    assert "leader-epoch" in watched.found[0]


class Sending:
    """A channel whose connection ends before the last response."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.watched = Watched()
        self.channel: Any = ProgramObject(
            _pending=ControllerRequestBatch(),
            _refused_stops=ControllerRequestBatch(),
            broker=SimpleNamespace(broker_id=2),
        )
        self.answers_stops = False
        self.forgets = False
        self.stops_twice = False
        self.fails = True
        self.code = 0
        monkeypatch.setattr(commands_promise, "TELL", lambda channel, command: channel._pending.add(command))
        monkeypatch.setattr(commands_promise, "TAKE", self.take)
        monkeypatch.setattr(commands_promise, "SEND", self.send)

    def take(self, channel: Any, command: ControllerRequestBatch, *of: Any) -> None:
        if not self.stops_twice:
            command.stops.clear()

    async def send(self, channel: Any, link: Any) -> None:
        command, channel._pending = channel._pending, ControllerRequestBatch()
        if self.answers_stops:
            one = StopReplicaPartitionError(topic_name="t", partition_index=0, error_code=self.code)
            answer = StopReplicaResponse(error_code=ErrorCode.NONE, partition_errors=[one])
            self.watched.promise._take(channel, command, answer)
        if not self.fails:
            return
        if not self.forgets:
            newer, channel._pending = channel._pending, command
            channel._pending.add(newer)
        raise LinkError("the connection ends")

    def tell(self, **parts: Any) -> None:
        command = ControllerRequestBatch()
        command.has_changes = True
        for name, value in parts.items():
            setattr(command, name, value)
        self.watched.promise._tell(cast(ControllerChannel, self.channel), command)

    def play(self) -> list[str]:
        """Sends the pending requests; returns the findings."""

        async def story() -> None:
            link: Any = SimpleNamespace(is_closed=False)
            try:
                await self.watched.promise._send(cast(ControllerChannel, self.channel), link)
            except LinkError:
                return

        asyncio.run(story())
        return self.watched.found


def test_a_repeated_unanswered_request_breaks_no_promise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sending = Sending(monkeypatch)
    sending.tell(states={KEY: {0: STATE}}, metadata={KEY: {0: STATE}}, stops={KEY: {1: ReplicaStop(3, True)}})
    assert sending.play() == []
    sending.answers_stops = True
    assert sending.play() == []
    sending.tell(states={KEY: {0: LATER}}, metadata={KEY: {0: LATER}}, is_full=True)
    sending.fails = False
    assert sending.play() == []


def test_a_lost_request_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sending = Sending(monkeypatch)
    sending.tell(metadata={KEY: {0: STATE}})
    sending.forgets = True
    assert "they are not repeated" in sending.play()[0]


def test_a_stop_replica_repeated_after_its_response_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sending = Sending(monkeypatch)
    sending.tell(stops={KEY: {0: ReplicaStop(3, True)}})
    sending.answers_stops = sending.stops_twice = True
    assert "would receive the request again" in sending.play()[0]


def test_a_state_that_a_full_state_has_replaced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sending = Sending(monkeypatch)
    sending.tell(metadata={KEY: {0: STATE}})
    sending.tell(is_full=True)
    sending.channel._pending.metadata = {KEY: {0: STATE}}
    assert "receives outdated states" in sending.play()[0]


def test_a_rejected_stop_replica_may_be_repeated_until_the_replica_is_assigned_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for is_given_again in (False, True):
        sending = Sending(monkeypatch)
        monkeypatch.setattr(
            commands_promise,
            "STOP_AGAIN",
            lambda channel: channel._pending.stops.setdefault(KEY, {}).update({0: ReplicaStop(3, True)}),
        )
        sending.tell(stops={KEY: {0: ReplicaStop(3, True)}})
        sending.answers_stops, sending.fails = True, False
        sending.code = ErrorCode.KAFKA_STORAGE_ERROR
        assert sending.play() == []
        if is_given_again:
            sending.tell(states={KEY: {0: LATER}})
        sending.channel._refused_stops.stops = {KEY: {0: ReplicaStop(3, True)}}
        sending.watched.promise._stop_again(sending.channel)
        sending.channel._pending.has_changes = True
        found = sending.play()
        assert bool(found) is is_given_again
