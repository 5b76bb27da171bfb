"""The log lines for the changes of administrators, with the requester."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_handlers_moves import PREFERRED, brokers_in
from test_handlers_topics import BROKER, LOGGER, SET, TOPIC, broker_in, metadata_of, new_topics

from tidemill.broker import admin_log, auto_topic_creation
from tidemill.broker.request_context import RequestContext
from tidemill.coordination.coordination_store import Create
from tidemill.coordination.nodes import (
    PREFERRED_REPLICA_ELECTION,
    REASSIGN_PARTITIONS,
    PartitionListNode,
    ReassignmentNode,
)
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition
from tidemill.net.peer import Listener, Peer
from tidemill.server.logging import ADMIN_REPEATS_MAX, RepeatFilter
from tidemill.wire.messages.alter_configs import (
    AlterableConfig as ReplacedConfig,
)
from tidemill.wire.messages.alter_configs import (
    AlterConfigsRequest,
)
from tidemill.wire.messages.alter_configs import (
    AlterConfigsResource as ReplacedResource,
)
from tidemill.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from tidemill.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from tidemill.wire.messages.delete_topics import DeleteTopicsRequest
from tidemill.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

BY = "(by User:ANONYMOUS, client 'test', from 127.0.0.1)"
DELETE = 1


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Returns the changes that were logged since the last call."""
    found = [one.getMessage() for one in caplog.records if one.name == "tidemill.admin"]
    assert all(one.levelno == logging.INFO for one in caplog.records if one.name == "tidemill.admin")
    caplog.clear()
    return found


async def test_created_grown_and_deleted_topics_are_logged_with_the_requester(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_in(tmp_path) as broker:
        await broker.ask(new_topics("a", "b", count=2, retention_ms="1000"), 5)
        assert lines(caplog) == [
            "topics created: a with 2 partitions of 1 replicas, retention.ms=1000; "
            f"b with 2 partitions of 1 replicas, retention.ms=1000 {BY}"
        ]
        await broker.ask(new_topics("a"), 5)
        await broker.ask(new_topics("c", validate_only=True), 5)
        assert lines(caplog) == [], "nothing was changed"
        growth = CreatePartitionsTopic(name="a", count=5, assignments=None)
        await broker.ask(CreatePartitionsRequest(topics=[growth], timeout_ms=5000), 2)
        assert lines(caplog) == [f"partitions added: a has 5 partitions {BY}"]
        await broker.ask(DeleteTopicsRequest(topic_names=["a", "none"], timeout_ms=5000), 5)
        assert lines(caplog) == [f"topics deleted: a {BY}"]
        await broker.ask(metadata_of("made", create=True), 9)
        assert lines(caplog) == [f"topics created because a client requested their metadata: made {BY}"]


async def test_a_topic_requested_by_many_clients_is_logged_as_created_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_in(tmp_path) as broker:
        await asyncio.gather(*(broker.ask(metadata_of("made", create=True), 9) for _ in range(20)))
        assert lines(caplog) == [f"topics created because a client requested their metadata: made {BY}"]


async def test_a_topic_that_is_still_being_deleted_is_not_logged_as_created(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_topic_creation, "METADATA_WAIT_S_MAX", 0.05)

    async with brokers_in(tmp_path) as brokers:
        await brokers.have([7, 1])  # Broker 1 has not deleted its replica.
        await brokers.asked.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=5000), 5)
        lines(caplog)
        response = await brokers.asked.ask(metadata_of("t", create=True), 9)
        assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert lines(caplog) == []


async def test_altered_settings_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def incremental(kind: int, name: str, *changes: tuple[str, int, str | None]) -> Any:
        configs = [AlterableConfig(name=one, config_operation=how, value=to) for one, how, to in changes]
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
        return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)

    async with broker_in(tmp_path) as broker:
        await broker.ask(new_topics("t"), 5)
        lines(caplog)
        await broker.ask(
            incremental(TOPIC, "t", ("retention.ms", SET, "5000"), ("max.message.bytes", DELETE, None)), 1
        )
        assert lines(caplog) == [
            "settings altered: topic t: retention.ms set to 5000, max.message.bytes reset " + BY
        ]
        await broker.ask(incremental(BROKER, "", ("log.retention.ms", SET, "9000")), 1)
        assert lines(caplog) == [f"settings altered: broker defaults: log.retention.ms set to 9000 {BY}"]
        await broker.ask(incremental(LOGGER, "7", ("tidemill.admin", SET, "INFO")), 1)
        assert lines(caplog) == [f"settings altered: broker_logger 7: tidemill.admin set to INFO {BY}"]
        await broker.ask(incremental(TOPIC, "t", ("retention.ms", SET, "soon")), 1)
        assert lines(caplog) == [], "it was refused"
        replaced = ReplacedResource(
            resource_type=TOPIC,
            resource_name="t",
            configs=[ReplacedConfig(name="retention.ms", value="7000")],
        )
        await broker.ask(AlterConfigsRequest(resources=[replaced], validate_only=False), 1)
        assert lines(caplog) == [f"settings altered: topic t: all replaced by 1, retention.ms=7000 {BY}"]


async def test_reassignments_are_logged_when_they_start_end_and_are_cancelled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([7, 1], [7, 1])
        lines(caplog)
        assert await brokers.alter({0: [7, 2], 1: [7, 3]}) == {0: 0, 1: 0}
        assert lines(caplog) == [f"reassignments started: t-0 to [7, 2]; t-1 to [7, 3] {BY}"]
        assert await brokers.alter({1: None}) == {1: 0}
        assert "reassignments done" not in caplog.text
        assert lines(caplog) == [f"reassignments cancelled: t-1 {BY}"]
        await brokers.in_sync(7, 1, 2)
        assert "reassignments done: t-0 to [7, 2]" in caplog.messages
        caplog.clear()
        wishes = ReassignmentNode.encode({TopicPartition("t", 0): [7, 3]})
        await brokers.store.transact([Create(REASSIGN_PARTITIONS, wishes)])
        await brokers.controller.reassignments.apply_requested_reassignments()
        assert f"reassignments started by {REASSIGN_PARTITIONS}: t-0 to [7, 3]" in caplog.messages
        assert "(by " not in caplog.text, "the requester is not known"


async def test_a_reassignment_that_ends_at_once_is_logged_as_started_before_it_is_logged_as_done(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([7, 1, 2])
        lines(caplog)
        assert await brokers.alter({0: [7, 1]}) == {0: 0}
        assert lines(caplog) == [
            f"reassignments started: t-0 to [7, 1] {BY}",
            "reassignments done: t-0 to [7, 1]",
        ]
        wishes = ReassignmentNode.encode({TopicPartition("t", 0): [7]})
        await brokers.store.transact([Create(REASSIGN_PARTITIONS, wishes)])
        await brokers.controller.reassignments.apply_requested_reassignments()
        assert lines(caplog) == [
            f"reassignments started by {REASSIGN_PARTITIONS}: t-0 to [7]",
            "reassignments done: t-0 to [7]",
        ]


async def test_only_started_moves_between_directories_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def begin(key: TopicPartition, path: str) -> None:
        if path != "/other":
            raise KafkaError(f"{path} is not in log.dirs", ErrorCode.LOG_DIR_NOT_FOUND)

    wanted = [
        AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name="t", partitions=[number])])
        for number, path in enumerate(("/nowhere", "/other"))
    ]
    async with broker_in(tmp_path) as broker:
        broker.replica_manager.find = lambda topic, index: None
        broker.replica_manager.replica_alter_log_dirs = SimpleNamespace(begin=begin)
        response = await broker.ask(AlterReplicaLogDirsRequest(dirs=wanted), 2)
        ((first, second),) = [topic.partitions for topic in response.results]
        assert (first.error_code, second.error_code) == (ErrorCode.LOG_DIR_NOT_FOUND, ErrorCode.NONE)
        assert lines(caplog) == [f"moves between directories started: t-1 to /other {BY}"]


async def test_requested_elections_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([1, 7], [7, 1])
        await brokers.go(1)
        await brokers.come(1)
        await brokers.in_sync(7, 1)
        lines(caplog)
        asked = await brokers.elect(2, PREFERRED, [0, 1])
        assert asked == {0: 0, 1: ErrorCode.ELECTION_NOT_NEEDED}
        assert lines(caplog) == [f"preferred elections done: t-0 {BY}"]
        await brokers.go(1)
        await brokers.come(1)
        await brokers.in_sync(7, 1)
        node = PartitionListNode.encode([TopicPartition("t", 0)])
        await brokers.store.transact([Create(PREFERRED_REPLICA_ELECTION, node)])
        caplog.clear()
        await brokers.controller.leader_elections.run_requested_elections()
        text = f"preferred elections done, requested by {PREFERRED_REPLICA_ELECTION}: t-0"
        assert text in caplog.messages


def test_long_client_ids_and_topic_names_are_shortened(caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer(Listener("PLAINTEXT", "localhost", 9092), "User:x", "10.0.0.7", 1)
    context = RequestContext(peer, "c" * 30_000, 0, 0, 1)
    admin_log.log_change(context, "topics deleted", ["t" * 10_000, *(str(number) for number in range(100))])
    found = lines(caplog)
    assert len(found) == 3, "fifty items a line"
    assert all(len(line) < 1000 for line in found)
    admin_log.log_change(context, "topics deleted", [])
    assert lines(caplog) == []


def test_repeated_changes_are_logged_up_to_a_higher_limit() -> None:
    repeats = RepeatFilter(repeats_max=3)
    record = logging.LogRecord("tidemill.admin", logging.INFO, "", 0, "%s: %s (by %s)", (), None)
    assert all(repeats.filter(record) for _ in range(ADMIN_REPEATS_MAX))
    assert not repeats.filter(record)
    other = logging.LogRecord("tidemill.server", logging.INFO, "", 0, "%s: %s (by %s)", (), None)
    assert [repeats.filter(other) for _ in range(4)] == [True, True, True, False]
