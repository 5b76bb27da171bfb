"""Committed offsets: commit, deletion, expiry and replay."""

from __future__ import annotations

import pytest
from groups_bench import WALL_MS, Bench, run

from tidemill.coordinator_runtime.coordinator_effects import Now
from tidemill.groups.offset_records import (
    CommittedOffset,
    GroupMetadataValue,
    GroupRecord,
    MemberMetadata,
    OffsetRecord,
)
from tidemill.model.types import ZERO_ID

RETENTION_MS = 600_000
SUBSCRIPTION = bytes.fromhex("0000 00000001 0001 74 00000000").decode("latin-1")
"""The subscription of a consumer to topic t."""

STABLE = """
    join A
        Empty -> PreparingRebalance
    wait 3000
      at 3000
        PreparingRebalance -> CompletingRebalance
        A joined m1 gen=1 range leader=m1 [m1]
    sync A id=m1 gen=1 assign=m1:x
        log group gen=1 leader=m1 [m1:x]
        CompletingRebalance -> Stable
        A assigned range x
"""


def committed(bench: Bench) -> dict[str, dict[int, int]]:
    """The offsets of the group by topic and partition."""
    offsets = bench.state_machine.offsets("g")
    return {topic: {index: one.offset for index, one in of.items()} for topic, of in offsets.items()}


def test_a_member_commits() -> None:
    bench = run(
        STABLE
        + """
    commit A t-0=5 t-1=7 u-0=1 id=m1 gen=1 meta=note
        log t-0=5
        log t-1=7
        log u-0=1
        A committed NONE NONE NONE
    commit A t-0=6 id=m1 gen=1
        log t-0=6
        A committed NONE
    """
    )
    assert committed(bench) == {"t": {0: 6, 1: 7}, "u": {0: 1}}
    assert bench.state_machine.offsets("g")["t"][1] == CommittedOffset(7, -1, "note", WALL_MS + 3_000)


def test_a_commit_is_visible_after_its_write() -> None:
    bench = run(
        """
        manual
        commit A t-0=5
            log t-0=5
        """
    )
    assert committed(bench) == {}
    bench.play("store")
    assert committed(bench) == {"t": {0: 5}}
    assert bench.lines[-1] == "    A committed NONE"


def test_a_failed_commit_changes_nothing() -> None:
    bench = run(
        """
        manual
        commit A t-0=5
            log t-0=5
        fail COORDINATOR_NOT_AVAILABLE
            A committed COORDINATOR_NOT_AVAILABLE
        """
    )
    assert bench.state_machine.groups == {}


def test_rejects_long_metadata_only_for_its_partition() -> None:
    bench = Bench(offset_metadata_size_max=4)
    bench.play("commit A t-0=5 meta=12345")
    bench.play("commit A t-0=5 meta=1234")
    assert bench.lines == [
        "    A committed OFFSET_METADATA_TOO_LARGE",
        "    log t-0=5",
        "    A committed NONE",
    ]


def test_rejects_wrong_generations_and_unknown_members() -> None:
    run(
        STABLE
        + """
    commit A t-0=5 id=m1 gen=0
        A committed ILLEGAL_GENERATION
    commit A t-0=5 id=m9 gen=1
        A committed UNKNOWN_MEMBER_ID
    commit A t-0=5
        A committed UNKNOWN_MEMBER_ID
    commit A t-0=5 id=m1
        A committed ILLEGAL_GENERATION
    join A id=m1
        Stable -> PreparingRebalance
        PreparingRebalance -> CompletingRebalance
        A joined m1 gen=2 range leader=m1 [m1]
    commit A t-0=5 id=m1 gen=2
        A committed REBALANCE_IN_PROGRESS
    """
    )


def test_members_may_commit_while_others_rejoin() -> None:
    run(
        STABLE
        + """
    join B
        Stable -> PreparingRebalance
    commit A t-0=5 id=m1 gen=1
        log t-0=5
        A committed NONE
    """
    )


def test_a_commit_keeps_the_session_alive() -> None:
    run(
        STABLE
        + """
    wait 9000
    commit A t-0=5 id=m1 gen=1
        log t-0=5
        A committed NONE
    wait 9000
    beat id=m1 gen=1
        NONE
    """
    )


@pytest.mark.parametrize(("version", "error"), [(8, "ILLEGAL_GENERATION"), (9, "GROUP_ID_NOT_FOUND")])
def test_a_member_of_an_unknown_group_cannot_commit(version: int, error: str) -> None:
    bench = run(f"commit A t-0=5 id=m1 gen=1 v={version}\n    A committed {error}")
    assert bench.state_machine.groups == {}


def test_a_commit_without_membership_creates_a_group_without_protocol() -> None:
    bench = run(
        """
        commit A t-0=5
            log t-0=5
            A committed NONE
        """
    )
    view = bench.state_machine.describe("g")
    assert (view.state, view.protocol_type, view.members) == ("Empty", "", ())


def test_members_may_join_a_group_without_protocol() -> None:
    bench = run("commit A t-0=5\n    log t-0=5\n    A committed NONE")
    for line in ["join A", "wait 3000", "sync A id=m1 gen=1 assign=m1:x", "commit X t-0=9"]:
        bench.play(line)
    assert bench.lines[-1] == "    X committed UNKNOWN_MEMBER_ID"
    assert committed(bench) == {"t": {0: 5}}


# Deleting.


def test_offsets_that_no_member_consumes_are_deleted() -> None:
    bench = Bench(initial_rebalance_delay_ms=0)
    for line in [f"join A protocols=range:{SUBSCRIPTION}".replace("\x00", "\x00"), "wait 1"]:
        bench.play(line)
    bench.play("sync A id=m1 gen=1")
    bench.play("commit A t-0=5 u-0=7 id=m1 gen=1")
    bench.lines.clear()
    bench.play("forget X t-0 u-0 u-1")
    assert bench.lines == ["    log u-0 gone", "    X forgot NONE GROUP_SUBSCRIBED_TO_TOPIC NONE NONE"]
    assert committed(bench) == {"t": {0: 5}}


def test_offsets_of_a_group_with_another_protocol_are_kept_while_it_has_members() -> None:
    bench = Bench(initial_rebalance_delay_ms=0)
    for line in ["join A type=connect", "wait 1", "sync A id=m1 gen=1", "commit A t-0=5 id=m1 gen=1"]:
        bench.play(line)
    bench.play("forget X t-0")
    assert bench.lines[-1] == "    X forgot NON_EMPTY_GROUP"
    bench.play("forget X t-0")
    bench.play("leave A ids=m1")
    bench.play("forget X t-0 t-9")
    assert bench.lines[-2:] == ["    log t-0 gone", "    X forgot NONE NONE NONE"]


def test_offsets_of_an_unknown_group_cannot_be_deleted() -> None:
    run("forget X t-0\n    X forgot GROUP_ID_NOT_FOUND")


def test_deletes_a_pending_commit() -> None:
    bench = run(
        """
        manual
        commit A t-0=5
            log t-0=5
        forget X t-0
            log t-0 gone
        store
            A committed NONE
        store
            X forgot NONE NONE
        """
    )
    assert bench.state_machine.groups == {}


def test_a_group_is_deleted_with_its_offsets() -> None:
    bench = run(
        STABLE
        + """
    commit A t-0=5 u-3=1 id=m1 gen=1
        log t-0=5
        log u-3=1
        A committed NONE NONE
    delete X
        X deleted NON_EMPTY_GROUP
    leave A ids=m1
        A left NONE NONE
        Stable -> PreparingRebalance
        PreparingRebalance -> Empty
        log group gen=2 leader=None []
    delete X
        log t-0 gone
        log u-3 gone
        log group gone
        X deleted NONE
    delete X
        X deleted GROUP_ID_NOT_FOUND
    """
    )
    assert bench.state_machine.groups == {}
    bench.reload()
    assert bench.state_machine.groups == {}


def test_rejects_joins_while_a_group_is_being_deleted() -> None:
    run(
        """
        commit A t-0=5
            log t-0=5
            A committed NONE
        manual
        delete X
            log t-0 gone
            log group gone
        join B
            B join COORDINATOR_NOT_AVAILABLE
        commit B t-0=7
            B committed COORDINATOR_NOT_AVAILABLE
        delete Y
            Y deleted GROUP_ID_NOT_FOUND
        store
            X deleted NONE
        join B
            Empty -> PreparingRebalance
        """
    )


def test_a_failed_deletion_keeps_the_group() -> None:
    bench = run(
        """
        commit A t-0=5
            log t-0=5
            A committed NONE
        manual
        delete X
            log t-0 gone
            log group gone
        fail NOT_COORDINATOR
            X deleted NOT_COORDINATOR
        """
    )
    assert committed(bench) == {"t": {0: 5}}
    bench.play("join B")
    assert bench.lines[-1] == "    Empty -> PreparingRebalance"


def test_deletes_the_offsets_of_deleted_topics() -> None:
    bench = run("commit A t-0=5 u-0=7\n    log t-0=5\n    log u-0=7\n    A committed NONE NONE")
    bench.state_machine.topics_deleted({"t": ZERO_ID}, ["g"], bench.now)
    bench.run_effects()
    assert bench.lines[-1] == "    log t-0 gone"
    assert committed(bench) == {"u": {0: 7}}


# Expiry.


def test_offsets_without_membership_expire_after_their_commit() -> None:
    bench = run(
        """
        commit A t-0=5
            log t-0=5
            A committed NONE
        wait 300000
        commit A t-1=6
            log t-1=6
            A committed NONE
        wait 299999
        expire
        wait 1
        expire
            log t-0 gone
        wait 300000
        expire
            log t-1 gone
            log group gone
        """,
        offsets_retention_ms=RETENTION_MS,
    )
    assert bench.state_machine.groups == {}


def test_members_offsets_expire_after_the_group_became_empty() -> None:
    bench = run(
        STABLE
        + """
    commit A t-0=5 id=m1 gen=1
        log t-0=5
        A committed NONE
    wait 9000
    beat id=m1 gen=1
        NONE
    leave A ids=m1
        A left NONE NONE
        Stable -> PreparingRebalance
        PreparingRebalance -> Empty
        log group gen=2 leader=None []
    wait 595000
    expire
    reload
        Empty -> Dead
    expire
    wait 5000
    expire
        log t-0 gone
        log group gone
    """,
        offsets_retention_ms=RETENTION_MS,
    )
    assert bench.state_machine.groups == {}


def test_offsets_of_subscribed_topics_do_not_expire() -> None:
    bench = Bench(initial_rebalance_delay_ms=0, offsets_retention_ms=RETENTION_MS)
    for line in [f"join A protocols=range:{SUBSCRIPTION} session=1000000", "wait 1", "sync A id=m1 gen=1"]:
        bench.play(line)
    bench.play("commit A t-0=5 u-0=7 id=m1 gen=1")
    bench.play(f"wait {RETENTION_MS}")
    bench.lines.clear()
    bench.play("expire")
    assert bench.lines == ["    log u-0 gone"]
    assert committed(bench) == {"t": {0: 5}}


@pytest.mark.parametrize(
    "join",
    [
        pytest.param("join A protocols=range:? session=1000000", id="an unreadable subscription"),
        pytest.param("join A type=connect session=10000000", id="another protocol"),
    ],
)
def test_no_offset_of_a_group_with_unknown_topics_expires(join: str) -> None:
    bench = Bench(initial_rebalance_delay_ms=0, offsets_retention_ms=RETENTION_MS)
    for line in [join, "wait 1", "sync A id=m1 gen=1"]:
        bench.play(line)
    bench.play("commit A t-0=5 id=m1 gen=1")
    bench.play(f"wait {RETENTION_MS}")
    bench.play("expire")
    assert committed(bench) == {"t": {0: 5}}


def test_the_expiry_of_an_offset_precedes_that_of_the_group() -> None:
    run(
        """
        commit A t-0=5 retention=1000
            log t-0=5
            A committed NONE
        wait 999
        expire
        reload
            Empty -> Dead
        wait 1
        expire
            log t-0 gone
            log group gone
        """,
        offsets_retention_ms=RETENTION_MS,
    )


def test_limits_an_expiry_to_the_range_of_the_record() -> None:
    bench = run(
        f"""
        commit A t-0=5 retention={2**63 - 1}
            log t-0=5
            A committed NONE
        """
    )
    offset = bench.state_machine.offsets("g")["t"][0]
    assert offset.expire_timestamp_ms == 2**63 - 1
    assert OffsetRecord("g", "t", 0, offset).value_bytes() is not None


def test_an_offset_committed_again_during_the_expiry_stays() -> None:
    bench = run(
        f"""
        commit A t-0=5
            log t-0=5
            A committed NONE
        wait {RETENTION_MS}
        manual
        commit A t-0=6
            log t-0=6
        expire
        store
            A committed NONE
        """,
        offsets_retention_ms=RETENTION_MS,
    )
    assert committed(bench) == {"t": {0: 6}}


def test_a_group_without_a_state_timestamp_expires_by_its_commits() -> None:
    bench = Bench(offsets_retention_ms=RETENTION_MS)
    value = GroupMetadataValue(protocol_type="consumer", generation=3)
    bench.state_machine.replay(GroupRecord("g", value), bench.now)
    offset = CommittedOffset(5, commit_timestamp_ms=WALL_MS - RETENTION_MS)
    bench.state_machine.replay(OffsetRecord("g", "t", 0, offset), bench.now)
    bench.state_machine.replay(
        OffsetRecord("g", "t", 1, offset._replace(commit_timestamp_ms=WALL_MS)), bench.now
    )
    bench.play("expire")
    assert bench.lines == ["    log t-0 gone"]


# Replay.


def test_offsets_stay_when_a_groups_record_is_replayed() -> None:
    bench = Bench()
    now = Now(monotonic_ms=0, wall_ms=WALL_MS)
    bench.state_machine.replay(OffsetRecord("g", "t", 0, CommittedOffset(5)), now)
    member = MemberMetadata(member_id="m1", session_timeout=10_000)
    value = GroupMetadataValue(
        protocol_type="consumer", generation=3, protocol="r", leader="m1", members=[member]
    )
    bench.state_machine.replay(GroupRecord("g", value), now)
    assert committed(bench) == {"t": {0: 5}}
    assert bench.state_machine.describe("g").state == "Stable"
    bench.state_machine.replay(GroupRecord("g", None), now)
    assert committed(bench) == {"t": {0: 5}}
    assert bench.state_machine.describe("g").state == "Empty"
    bench.state_machine.replay(OffsetRecord("g", "t", 0, None), now)
    assert bench.state_machine.groups == {}
