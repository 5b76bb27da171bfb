"""The group coordinator: order, failures, timeouts, loading, leadership."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from coordinator_fixture import PARTITIONS, CoordinatorFixture, MemoryLog, commit, join, turns

from record_builders import build_batch, parse_batches
from tidemill.coordinator_runtime.coordinator_effects import Now
from tidemill.groups import offset_commits
from tidemill.groups.coordinator_effects import CommitRequest, LeavingMember, OffsetsStored, OffsetToCommit
from tidemill.groups.event_context import EventContext
from tidemill.groups.group_metadata import GroupInvariantError
from tidemill.groups.group_metadata_manager import GroupMetadataManager
from tidemill.groups.offset_records import (
    CommittedOffset,
    GroupMetadataValue,
    GroupRecord,
    MemberMetadata,
    OffsetRecord,
    OffsetsRecord,
)
from tidemill.groups.pending_joins import PENDING_JOIN_BYTES
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import ZERO_ID
from tidemill.records.builder import BatchBuilder, build_end_marker

Story = Callable[[], Coroutine[Any, Any, None]]


async def test_the_next_coordinator_loads_members_and_offsets() -> None:
    log = MemoryLog()
    async with CoordinatorFixture(log) as fixture:
        member = await fixture.stable()
        assert member.startswith("app-")
        request = commit(generation=1, member_id=member)
        assert (await fixture.service.commit(request)).errors == (ErrorCode.NONE,)
        assert fixture.service.heartbeat("g", member, 1, None) is ErrorCode.NONE
        assert fixture.service.rebalances == 1
        assert fixture.service.commits == 1
    async with CoordinatorFixture(log) as fixture:
        assert fixture.service.heartbeat("g", member, 1, None) is ErrorCode.NONE
        error, offsets = await fixture.service.fetch("g")
        assert error is ErrorCode.NONE
        assert offsets["t"][0].offset == 5
        view = fixture.service.describe("g")
        assert not isinstance(view, ErrorCode)
        assert (view.state, view.members[0].assignment) == ("Stable", b"x")
        await fixture.time.advance(9_000)
        assert fixture.service.heartbeat("g", member, 1, None) is ErrorCode.NONE
        await fixture.time.advance(10_002)
        assert fixture.service.heartbeat("g", member, 1, None) is ErrorCode.UNKNOWN_MEMBER_ID


async def test_responds_only_after_the_commit() -> None:
    async with CoordinatorFixture() as fixture:
        fixture.log.gate.clear()
        committing = asyncio.ensure_future(fixture.service.commit(commit()))
        await turns()
        assert not committing.done()
        assert await fixture.service.fetch("g") == (ErrorCode.NONE, {})
        stable = asyncio.ensure_future(fixture.service.fetch("g", require_stable=True))
        await turns()
        assert not stable.done()
        fixture.log.gate.set()
        assert (await committing).errors == (ErrorCode.NONE,)
        assert (await stable)[1]["t"][0].offset == 5


async def test_a_stable_fetch_does_not_wait_for_later_commits() -> None:
    async with CoordinatorFixture() as fixture:
        await fixture.service.commit(commit())
        assert (await asyncio.wait_for(fixture.service.fetch("g", require_stable=True), 1))[1]["t"][
            0
        ].offset == 5


async def test_requests_of_one_turn_share_a_batch() -> None:
    async with CoordinatorFixture() as fixture:
        results = await asyncio.gather(*(fixture.service.commit(commit(topic=f"t{n}")) for n in range(50)))
        assert {result.errors for result in results} == {(ErrorCode.NONE,)}
        assert len(fixture.log.batches[fixture.partition()]) == 1
        assert len(fixture.log.records(fixture.partition())) == 50


async def test_splits_a_large_commit_into_batches() -> None:
    async with CoordinatorFixture() as fixture:
        offsets = tuple(
            OffsetToCommit(topic="t", partition=n, offset=n, metadata="m" * 4_000) for n in range(300)
        )
        result = await fixture.service.commit(CommitRequest(group_id="g", offsets=offsets))
        assert set(result.errors) == {ErrorCode.NONE}
        batches = fixture.log.batches[fixture.partition()]
        assert len(batches) == 3
        assert max(len(batch) for batch in batches) < 600_000
        assert len((await fixture.service.fetch("g"))[1]["t"]) == 300


async def test_a_commit_fails_when_one_of_its_batches_fails() -> None:
    async with CoordinatorFixture() as fixture:
        offsets = tuple(
            OffsetToCommit(topic="t", partition=n, offset=n, metadata="m" * 4_000) for n in range(300)
        )
        fixture.log.errors.append(KafkaError("one replica", ErrorCode.NOT_ENOUGH_REPLICAS))
        result = await fixture.service.commit(CommitRequest(group_id="g", offsets=offsets))
        assert set(result.errors) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        held = (await fixture.service.fetch("g"))[1]["t"]
        assert set(held) == {record.partition for record in fixture.log.records(fixture.partition())}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_RECORD),
    ],
)
async def test_maps_append_errors_to_coordinator_errors(error: ErrorCode, told: ErrorCode) -> None:
    async with CoordinatorFixture() as fixture:
        fixture.log.errors.append(KafkaError("refused", error))
        assert (await fixture.service.commit(commit())).errors == (told,)
        assert (await fixture.service.commit(commit())).errors == (ErrorCode.NONE,)


async def test_an_unexpected_append_error_is_unknown_server_error() -> None:
    async with CoordinatorFixture() as fixture:
        fixture.log.errors.append(RuntimeError("bug"))
        assert (await fixture.service.commit(commit())).errors == (ErrorCode.UNKNOWN_SERVER_ERROR,)


async def test_an_unencodable_commit_does_not_fail_the_other_commits_of_its_turn() -> None:
    async with CoordinatorFixture() as fixture:
        offsets = (
            OffsetToCommit(topic="t", partition=0, offset=1),
            OffsetToCommit(topic="t", partition=1, offset=2**63),
        )
        before, broken, after = (
            asyncio.ensure_future(fixture.service.commit(request))
            for request in (
                commit(topic="a"),
                CommitRequest(group_id="g", offsets=offsets),
                commit(topic="b"),
            )
        )
        assert (await before).errors == (await after).errors == (ErrorCode.NONE,)
        assert (await broken).errors == (ErrorCode.UNKNOWN_SERVER_ERROR,) * 2
        _, held = await asyncio.wait_for(fixture.service.fetch("g", require_stable=True), 1)
        assert set(held) == {"a", "b"}


async def test_a_commit_that_timed_out_may_still_be_written() -> None:
    async with CoordinatorFixture() as fixture:
        fixture.log.gate.clear()
        committing = asyncio.ensure_future(fixture.service.commit(commit()))
        await fixture.time.advance(4_990)
        assert not committing.done()
        await fixture.time.advance(20)
        assert (await committing).errors == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)
        fixture.log.gate.set()
        await turns()
        assert (await fixture.service.fetch("g"))[1]["t"][0].offset == 5


async def test_members_rejoin_when_the_assignment_cannot_be_written() -> None:
    async with CoordinatorFixture() as fixture:
        joining = asyncio.ensure_future(fixture.service.join(join()))
        await fixture.time.advance(10)
        joined = await joining
        fixture.log.errors.append(KafkaError("gone", ErrorCode.NOT_ENOUGH_REPLICAS))
        from tidemill.groups.coordinator_effects import SyncRequest

        synced = await fixture.service.sync(
            SyncRequest(group_id="g", member_id=joined.member_id, generation=1)
        )
        assert synced.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert fixture.service.heartbeat("g", joined.member_id, 1, None) is ErrorCode.REBALANCE_IN_PROGRESS


# Leadership.


async def test_requests_for_groups_of_other_coordinators_fail_with_not_coordinator() -> None:
    async with CoordinatorFixture(lead=False) as fixture:
        service = fixture.service
        assert (await service.join(join())).error is ErrorCode.NOT_COORDINATOR
        assert (await service.commit(commit())).errors == (ErrorCode.NOT_COORDINATOR,)
        assert await service.fetch("g") == (ErrorCode.NOT_COORDINATOR, {})
        assert service.heartbeat("g", "m", 1, None) is ErrorCode.NOT_COORDINATOR
        assert service.describe("g") is ErrorCode.NOT_COORDINATOR
        assert await service.delete_groups(("g",)) == [ErrorCode.NOT_COORDINATOR]
        assert service.list_groups() == (ErrorCode.NONE, [])


async def test_requests_fail_with_load_in_progress_during_the_load() -> None:
    async with CoordinatorFixture(lead=False) as fixture:
        service = fixture.service
        fixture.log.reading.clear()
        fixture.lead()
        await turns()
        assert (await service.join(join())).error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await service.fetch("g") == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, {})
        assert service.heartbeat("g", "m", 1, None) is ErrorCode.NONE
        assert service.list_groups()[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        fixture.log.reading.set()
        await turns()
        assert await service.fetch("g") == (ErrorCode.NONE, {})


async def test_retries_a_failed_load_after_growing_pauses(caplog: pytest.LogCaptureFixture) -> None:
    async with CoordinatorFixture(lead=False) as fixture:
        fixture.log.read_errors = [OSError("disk"), OSError("disk"), OSError("disk")]
        fixture.service.runtime.become_leader(fixture.partition(), 1)
        await turns()
        attempts = []
        for _ in range(7):
            attempts.append(fixture.log.reads)
            assert (await fixture.service.fetch("g"))[0] is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await fixture.time.advance(1_010)
        assert attempts == [1, 2, 2, 3, 3, 3, 3]
        assert (await fixture.service.fetch("g"))[0] is ErrorCode.NONE
        (error,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
        assert "disk" in error


async def test_waits_also_for_a_repeated_load() -> None:
    async with CoordinatorFixture(lead=False) as fixture:
        fixture.log.read_errors = [KafkaError("disk", ErrorCode.KAFKA_STORAGE_ERROR)]
        fixture.service.runtime.become_leader(0, 1)
        await turns()
        fixture.log.reading.clear()
        await fixture.time.advance(2_000)
        assert fixture.log.reads == 2
        waiting = asyncio.ensure_future(fixture.service.runtime.wait_loaded(60))
        await turns()
        assert not waiting.done()
        fixture.log.reading.set()
        await asyncio.wait_for(waiting, 5)
        assert fixture.service.runtime.shards[0].is_active


async def test_loads_again_after_a_record_that_could_not_be_replayed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replay = GroupMetadataManager.replay
    poisoned = ["b"]

    def failing(manager: GroupMetadataManager, record: OffsetsRecord, now: Now) -> None:
        if isinstance(record, OffsetRecord) and record.topic in poisoned:
            raise RuntimeError("a defect")
        replay(manager, record, now)

    log = MemoryLog()
    builder = BatchBuilder()
    for topic in ("a", "b", "c"):
        record = OffsetRecord("g", topic, 0, CommittedOffset(5, -1, "", 0))
        builder.append(0, record.key_bytes(), record.value_bytes())
    monkeypatch.setattr(GroupMetadataManager, "replay", failing)
    async with CoordinatorFixture(log, lead=False) as fixture:
        service, partition = fixture.service, fixture.partition()
        log.batches[partition] = [builder.build()]
        service.runtime.become_leader(partition, 1)
        await fixture.time.advance(600_000)
        assert 10 < log.reads < 20
        assert await service.fetch("g") == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, {})
        (error,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
        assert f"__consumer_offsets-{partition}" in error
        assert "offset 1:" in error
        assert "tidemill log dump" in error
        poisoned.clear()
        await fixture.time.advance(60_000)
        found, offsets = await service.fetch("g")
        assert (found, sorted(offsets)) == (ErrorCode.NONE, ["a", "b", "c"])


async def test_a_stopping_broker_delays_offset_fetch_for_a_moved_group() -> None:
    async with CoordinatorFixture() as fixture:
        await fixture.service.commit(commit())
        fixture.service.begin_stop()
        assert (await fixture.service.fetch("g"))[1]["t"][0].offset == 5, "until the group has moved"
        fixture.service.runtime.resign(fixture.partition())
        asking = asyncio.ensure_future(fixture.service.fetch("g"))
        assert fixture.service.heartbeat("g", "m", 1, None) is ErrorCode.NOT_COORDINATOR
        await fixture.time.advance(2_990)
        assert not asking.done()
        await fixture.service.stop()
        assert await asyncio.wait_for(asking, 5) == (ErrorCode.NOT_COORDINATOR, {}), "to a closed connection"


async def test_a_broker_that_stops_slowly_responds_to_offset_fetch() -> None:
    async with CoordinatorFixture() as fixture:
        fixture.service.begin_stop()
        fixture.service.runtime.resign(fixture.partition())
        asking = asyncio.ensure_future(fixture.service.fetch("g"))
        await fixture.time.advance(2_990)
        assert not asking.done()
        await fixture.time.advance(20)
        assert await asyncio.wait_for(asking, 5) == (ErrorCode.NOT_COORDINATOR, {})


async def test_waiting_requests_fail_when_the_partition_moves() -> None:
    async with CoordinatorFixture(initial_rebalance_delay_ms=3_000) as fixture:
        partition = fixture.partition()
        fixture.log.gate.clear()
        joining = asyncio.ensure_future(fixture.service.join(join()))
        committing = asyncio.ensure_future(
            fixture.service.commit(commit("h" if fixture.partition("h") else "g"))
        )
        await turns()
        for each in range(PARTITIONS):
            fixture.service.runtime.resign(each, 2)
        assert (await joining).error is ErrorCode.NOT_COORDINATOR
        assert (await committing).errors in ((ErrorCode.NOT_COORDINATOR,), (ErrorCode.UNKNOWN_MEMBER_ID,))
        assert (await fixture.service.fetch("g"))[0] is ErrorCode.NOT_COORDINATOR
        fixture.service.runtime.become_leader(partition, 3)
        fixture.log.gate.set()
        await turns()
        assert (await fixture.service.fetch("g"))[0] is ErrorCode.NONE
        await fixture.time.advance(10_000)


async def test_an_unflushed_commit_fails_when_the_partition_moves() -> None:
    async with CoordinatorFixture() as fixture:
        committing = asyncio.ensure_future(fixture.service.commit(commit()))
        await asyncio.sleep(0)
        fixture.service.runtime.resign(fixture.partition())
        fixture.service.runtime.become_leader(fixture.partition(), 2)
        assert (await committing).errors == (ErrorCode.NOT_COORDINATOR,)
        assert fixture.log.batches == {}


async def test_ignores_a_resignation_of_an_older_epoch() -> None:
    async with CoordinatorFixture() as fixture:
        partition = fixture.partition()
        await fixture.service.commit(commit())
        fixture.service.runtime.become_leader(partition, 7)
        fixture.service.runtime.resign(partition, 6)
        assert (await fixture.service.fetch("g"))[1]["t"][0].offset == 5
        fixture.service.runtime.resign(partition, 7)
        assert (await fixture.service.fetch("g"))[0] is ErrorCode.NOT_COORDINATOR


async def test_timers_of_an_earlier_leadership_do_not_fire() -> None:
    async with CoordinatorFixture() as fixture:
        member = await fixture.stable()
        await fixture.time.advance(8_000)
        fixture.service.runtime.resign(fixture.partition())
        fixture.service.runtime.become_leader(fixture.partition(), 2)
        await fixture.time.advance(9_000)
        assert fixture.service.heartbeat("g", member, 1, None) is ErrorCode.NONE


# Loading.


def offset_record(topic: str, offset: int | None, group: str = "g") -> tuple[int, bytes, bytes | None, None]:
    value = None if offset is None else CommittedOffset(offset)
    record = OffsetRecord(group, topic, 0, value)
    return (0, record.key_bytes(), record.value_bytes(), None)


async def offsets_after(*batches: bytes, **config: int) -> dict[str, int]:
    log = MemoryLog()
    async with CoordinatorFixture(log, lead=False, **config) as fixture:
        log.batches[fixture.partition()] = list(batches)
        fixture.lead()
        await turns(40)
        error, offsets = await fixture.service.fetch("g")
        assert error is ErrorCode.NONE
        return {topic: of_topic[0].offset for topic, of_topic in offsets.items()}


async def test_the_last_record_of_a_key_is_kept() -> None:
    batches = [
        build_batch([offset_record("t", 5), offset_record("u", 1)]),
        build_batch([offset_record("t", 7), offset_record("u", None)], base_offset=2),
    ]
    assert await offsets_after(*batches) == {"t": 7}
    assert await offsets_after(b"".join(batches)) == {"t": 7}


async def test_compressed_batches_are_read() -> None:
    for codec in range(1, 5):
        assert await offsets_after(build_batch([offset_record("t", 5)], codec=codec)) == {"t": 5}


async def test_a_batch_above_the_unpack_limit_of_the_broker_is_skipped() -> None:
    small, large = [offset_record("t", 5)], [offset_record(f"topic-{n}", n) for n in range(100)]
    for codec in range(1, 5):
        batches = [build_batch(large, codec=codec), build_batch(small, codec=codec, base_offset=100)]
        assert await offsets_after(*batches, unpacked_bytes_max=1000) == {"t": 5}
        assert len(await offsets_after(*batches, unpacked_bytes_max=100_000)) == 101


async def test_skips_only_unreadable_records() -> None:
    strange = (0, b"\x00\x09other", b"\x00\x00", None)
    broken = (0, offset_record("t", 5)[1], b"\x00\x63", None)
    corrupt = bytearray(build_batch([offset_record("v", 5)]))
    corrupt[-1] ^= 1
    member = MemberMetadata(
        member_id="m",
        group_instance_id="i",
        client_id="c",
        client_host="h",
        session_timeout=1,
        subscription=b"",
        assignment=b"",
    )
    value = GroupMetadataValue(
        protocol_type="consumer", generation=1, protocol="range", leader="m", members=[member, member]
    )
    twice = (0, GroupRecord("other", value).key_bytes(), GroupRecord("other", value).value_bytes(), None)
    batches = [
        build_batch([strange, broken, (0, None, b"x", None), twice, offset_record("t", 5)]),
        bytes(corrupt),
        build_batch([offset_record("u", 6)]),
    ]
    assert await offsets_after(*batches) == {"t": 5, "u": 6}


async def test_transactional_offsets_take_effect_at_the_commit_marker() -> None:
    def of_producer(producer_id: int, topic: str) -> bytes:
        return build_batch(
            [offset_record(topic, 5)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )

    batches = [
        of_producer(1, "committed"),
        of_producer(2, "aborted"),
        of_producer(3, "open"),
        build_end_marker(True, 0, 1, 0, 0),
        build_end_marker(False, 0, 2, 0, 0),
    ]
    assert await offsets_after(*batches) == {"committed": 5}


async def test_a_later_record_overrides_a_transaction_that_ends_after_it() -> None:
    def committed(at: int, value: int, producer_id: int = -1) -> bytes:
        options: dict[str, int] = {}
        if producer_id >= 0:
            options = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
        return build_batch(
            [offset_record("t", value)], base_offset=at, transactional=bool(options), **options
        )

    def ended(producer_id: int) -> bytes:
        return build_end_marker(True, 0, producer_id, 0, 0)

    assert await offsets_after(committed(0, 5, 1), committed(1, 9), ended(1)) == {"t": 9}
    assert await offsets_after(committed(0, 5, 1), committed(1, 9, 2), ended(2), ended(1)) == {"t": 9}
    assert await offsets_after(committed(0, 5, 1), committed(1, 9, 2), ended(1), ended(2)) == {"t": 9}
    assert await offsets_after(committed(0, 9), committed(1, 5, 1), ended(1)) == {"t": 5}


async def test_loading_yields_to_other_tasks() -> None:
    log = MemoryLog()
    builder = BatchBuilder()
    for number in range(5_000):
        builder.append(*offset_record(f"t{number}", number)[:3])
    async with CoordinatorFixture(log, lead=False) as fixture:
        log.batches[fixture.partition()] = [builder.build()]
        fixture.lead()
        turns_taken = 0
        while (await fixture.service.fetch("g"))[0] is not ErrorCode.NONE:
            await asyncio.sleep(0)
            turns_taken += 1
        assert turns_taken >= 10
        assert len((await fixture.service.fetch("g"))[1]) == 5_000


# Finding.


async def test_concurrent_requests_create_the_topic_once() -> None:
    async with CoordinatorFixture() as fixture:
        fixture.topic.leads = None
        found = await asyncio.gather(
            *(fixture.service.runtime.find_coordinator("g", "EXTERNAL") for _ in range(20))
        )
        assert {endpoint.host for endpoint in found} == {"host-of-EXTERNAL"}
        assert found[0].port == 9092 + fixture.partition()
        assert fixture.topic.ensured == 1


async def test_find_coordinator_fails_when_the_topic_cannot_be_created() -> None:
    async with CoordinatorFixture() as fixture:
        fixture.topic.leads = None
        fixture.topic.error = KafkaError("no brokers", ErrorCode.INVALID_REPLICATION_FACTOR)
        with pytest.raises(KafkaError, match="no brokers") as caught:
            await fixture.service.runtime.find_coordinator("g", "L")
        assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        fixture.topic.error = None
        assert (await fixture.service.runtime.find_coordinator("g", "L")).node_id == 1


# Everything else.


async def test_writes_tombstones_for_expired_offsets() -> None:
    async with CoordinatorFixture() as fixture:
        fixture.service.start()
        await fixture.service.commit(commit())
        await fixture.time.advance(50_000)
        assert (await fixture.service.fetch("g"))[1] != {}
        await fixture.time.advance(20_000)
        assert await fixture.service.fetch("g") == (ErrorCode.NONE, {})
        assert fixture.log.records(fixture.partition())[1:] == [
            OffsetRecord("g", "t", 0, None),
            GroupRecord("g", None),
        ]


async def test_logs_and_retries_a_failed_expiry(caplog: pytest.LogCaptureFixture) -> None:
    async with CoordinatorFixture() as fixture:
        fixture.service.start()
        await fixture.service.commit(commit())
        shard = fixture.service.runtime.shards[fixture.partition()]
        plain = shard.machine.expire
        shard.machine.expire = lambda *_: 1 // 0  # type: ignore[method-assign]
        await fixture.time.advance(70_000)
        shard.machine.expire = plain  # type: ignore[method-assign]
        assert (await fixture.service.fetch("g"))[1] != {}
        await fixture.time.advance(10_001)
        assert await fixture.service.fetch("g") == (ErrorCode.NONE, {})
    assert "expired offsets were not removed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


async def test_deletes_groups_of_several_partitions() -> None:
    async with CoordinatorFixture() as fixture:
        await asyncio.gather(*(fixture.service.commit(commit(f"g{n}")) for n in range(10)))
        member = await fixture.stable("busy")
        asked = ("g3", "busy", "nobody", "g3", *(f"g{n}" for n in range(10)))
        errors = await fixture.service.delete_groups(asked)
        assert errors[:4] == [
            ErrorCode.NONE,
            ErrorCode.NON_EMPTY_GROUP,
            ErrorCode.GROUP_ID_NOT_FOUND,
            ErrorCode.NONE,
        ]
        assert set(errors[4:]) == {ErrorCode.NONE}
        assert [group.group_id for group in fixture.service.list_groups()[1]] == ["busy"]
        assert fixture.service.group_count() == 1
        left = await fixture.service.leave("busy", (LeavingMember(member_id=member),))
        assert left.members[0][1] is ErrorCode.NONE


async def test_the_reason_of_a_leaving_member_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="tidemill.groups"):
        async with CoordinatorFixture() as fixture:
            member = await fixture.stable("g")
            leaving = LeavingMember(member_id=member, reason="the consumer is closed")
            await fixture.service.leave("g", (leaving,))
    assert "(the consumer is closed) leave" in caplog.text


async def test_removes_the_offsets_of_deleted_topics() -> None:
    async with CoordinatorFixture() as fixture:
        await asyncio.gather(*(fixture.service.commit(commit(f"g{n}", topic=f"t{n % 2}")) for n in range(10)))
        await fixture.service.topics_deleted({"t0": ZERO_ID})
        await turns()
        assert sorted(group.group_id for group in fixture.service.list_groups()[1]) == [
            f"g{n}" for n in (1, 3, 5, 7, 9)
        ]


async def test_rejects_invalid_group_ids_and_session_timeouts() -> None:
    async with CoordinatorFixture() as fixture:
        service = fixture.service
        assert (await service.join(join(""))).error is ErrorCode.INVALID_GROUP_ID
        assert (await service.leave("", ())).error is ErrorCode.INVALID_GROUP_ID
        assert (await service.delete_offsets("", ())).error is ErrorCode.INVALID_GROUP_ID
        assert service.heartbeat("", "m", 1, None) is ErrorCode.INVALID_GROUP_ID
        for timeout_ms in (5_999, 1_800_001):
            result = await service.join(join(session_timeout_ms=timeout_ms))
            assert result.error is ErrorCode.INVALID_SESSION_TIMEOUT
        assert (await service.commit(commit(""))).errors == (ErrorCode.NONE,)


async def test_a_cancelled_join_raises_no_error_and_its_member_expires() -> None:
    async with CoordinatorFixture(initial_rebalance_delay_ms=1_000) as fixture:
        joining = asyncio.ensure_future(fixture.service.join(join()))
        await turns()
        joining.cancel()
        await fixture.time.advance(1_010)
        view = fixture.service.describe("g")
        assert not isinstance(view, ErrorCode)
        assert view.state == "CompletingRebalance"
        await fixture.time.advance(60_000)
        view = fixture.service.describe("g")
        assert not isinstance(view, ErrorCode)
        assert view.state == "Empty"


def held_bytes(fixture: CoordinatorFixture) -> int:
    """The size of the names of all groups in memory."""
    return sum(sys.getsizeof(group.group_id) for group in fixture.service.list_groups()[1])


async def test_limits_the_memory_of_unused_member_ids_on_all_partitions() -> None:
    async with CoordinatorFixture() as fixture:
        service = fixture.service
        service.pending_joins.bytes_max = 1_000_000
        alone = await service.join(join("g", requires_known_member_id=True))
        for number in range(100):
            long = f"{number}-".ljust(4_000, "\U0001f600")
            await service.join(join(long, requires_known_member_id=True))
        assert 800_000 < held_bytes(fixture) < 1_000_000
        assert (await service.join(join("g", alone.member_id))).error is ErrorCode.UNKNOWN_MEMBER_ID
        assert len(service.runtime.timers.current) < 70
        latest = (await service.join(join("g", requires_known_member_id=True))).member_id
        joining = asyncio.ensure_future(service.join(join("g", latest)))
        await fixture.time.advance(60_000)
        assert (await joining).error is ErrorCode.NONE
        assert [group.group_id for group in service.list_groups()[1]] == ["g"]
        assert service.pending_joins.bytes_held == 0


async def test_member_ids_in_use_do_not_count_as_unused() -> None:
    async with CoordinatorFixture() as fixture:
        service = fixture.service
        service.pending_joins.bytes_max = 10 * PENDING_JOIN_BYTES
        kept = (await service.join(join("g", requires_known_member_id=True))).member_id
        for number in range(50):
            member_id = (await service.join(join(f"g{number}", requires_known_member_id=True))).member_id
            if number % 2:
                await service.leave(f"g{number}", (LeavingMember(member_id=member_id),))
            else:
                joining = asyncio.ensure_future(service.join(join(f"g{number}", member_id)))
                await fixture.time.advance(1)
                assert (await joining).error is ErrorCode.NONE
        joining = asyncio.ensure_future(service.join(join("g", kept)))
        await fixture.time.advance(1)
        assert (await joining).error is ErrorCode.NONE
        assert service.pending_joins.bytes_held == 0


async def test_unused_member_ids_of_a_resigned_partition_are_dropped_first() -> None:
    async with CoordinatorFixture() as fixture:
        service = fixture.service
        service.pending_joins.bytes_max = 10 * PENDING_JOIN_BYTES
        await service.join(join("g", requires_known_member_id=True))
        service.runtime.resign(fixture.partition("g"))
        assert service.pending_joins.bytes_held > 0
        other = next(
            name for name in map(str, range(100)) if fixture.partition(name) != fixture.partition("g")
        )
        for _ in range(20):
            await service.join(join(other, requires_known_member_id=True))
        assert service.pending_joins.bytes_held <= service.pending_joins.bytes_max
        await fixture.time.advance(60_000)
        assert service.pending_joins.bytes_held == 0


async def test_an_append_that_cannot_be_encoded_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    encode = OffsetRecord.value_bytes

    def value_bytes(record: OffsetRecord) -> bytes | None:
        if record.topic == "bad":
            raise RuntimeError("a defect")
        return encode(record)

    monkeypatch.setattr(OffsetRecord, "value_bytes", value_bytes)
    async with CoordinatorFixture() as fixture:
        service = fixture.service
        results = await asyncio.wait_for(
            asyncio.gather(*(service.commit(commit(topic=topic)) for topic in ("a", "bad", "b"))), 5
        )
        assert [result.errors[0] for result in results] == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_SERVER_ERROR,
            ErrorCode.NONE,
        ]
        error, offsets = await asyncio.wait_for(service.fetch("g", require_stable=True), 5)
        assert (error, sorted(offsets)) == (ErrorCode.NONE, ["a", "b"])


async def test_reloads_a_partition_after_a_failed_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = GroupMetadataManager.replay
    failures = [RuntimeError("a defect")]

    def failing(manager: GroupMetadataManager, record: OffsetsRecord, now: Now) -> None:
        if failures:
            raise failures.pop()
        replay(manager, record, now)

    monkeypatch.setattr(GroupMetadataManager, "replay", failing)
    async with CoordinatorFixture() as fixture:
        service = fixture.service
        fixture.log.gate.clear()
        first = asyncio.ensure_future(service.commit(commit(topic="a")))
        await turns()
        second = asyncio.ensure_future(service.commit(commit(topic="b")))
        await turns()
        stable = asyncio.ensure_future(service.fetch("g", require_stable=True))
        await turns()
        fixture.log.gate.set()
        assert (await asyncio.wait_for(first, 5)).errors == (ErrorCode.UNKNOWN_SERVER_ERROR,)
        assert (await asyncio.wait_for(second, 5)).errors == (ErrorCode.NOT_COORDINATOR,)
        await asyncio.wait_for(stable, 5)
        await turns()
        error, offsets = await service.fetch("g", require_stable=True)
        assert (error, sorted(offsets)) == (ErrorCode.NONE, ["a", "b"])
        assert (await service.commit(commit(topic="c"))).errors == (ErrorCode.NONE,)


async def test_a_failed_continuation_gets_an_error_response(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [GroupInvariantError("a defect")]
    respond = offset_commits.respond_to_commit

    def lost(done: OffsetsStored, error: ErrorCode, context: EventContext) -> None:
        if failures:
            raise failures.pop()
        respond(done, error, context)

    monkeypatch.setattr(offset_commits, "respond_to_commit", lost)
    async with CoordinatorFixture() as fixture:
        service = fixture.service
        results = await asyncio.wait_for(
            asyncio.gather(*(service.commit(commit(topic=topic)) for topic in ("a", "b"))), 5
        )
        assert [result.errors[0] for result in results] == [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE]
        error, offsets = await asyncio.wait_for(service.fetch("g", require_stable=True), 5)
        assert (error, sorted(offsets)) == (ErrorCode.NONE, ["a", "b"])


async def test_idle_groups_share_one_timer_of_the_event_loop() -> None:
    async with CoordinatorFixture() as fixture:
        members = [await fixture.stable(f"g{n}", session_timeout_ms=60_000) for n in range(1_000)]
        assert fixture.time.armed == 1
        batches = sum(len(each) for each in fixture.log.batches.values())
        await fixture.time.advance(5_000)
        for number, member in enumerate(members):
            assert fixture.service.heartbeat(f"g{number}", member, 1, None) is ErrorCode.NONE
        await fixture.time.advance(5_000)
        assert fixture.time.armed == 1
        assert sum(len(each) for each in fixture.log.batches.values()) == batches


async def test_batches_have_the_wall_clock_time() -> None:
    async with CoordinatorFixture() as fixture:
        await fixture.service.commit(commit())
        data = fixture.log.batches[fixture.partition()][0]
        batch = parse_batches(data, 0, len(data))[0]
        assert batch.max_timestamp == fixture.time.wall_ms()
        assert not batch.is_control
