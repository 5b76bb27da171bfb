"""The classic group protocol as transcripts of requests, times and results."""

from __future__ import annotations

import pytest
from groups_bench import Bench, run

from tidemill.coordinator_runtime.coordinator_effects import Now
from tidemill.groups.coordinator_effects import GroupState, TimerKind
from tidemill.groups.group_coordinator_config import GroupCoordinatorConfig
from tidemill.groups.group_metadata import (
    TRANSITIONS,
    GroupInvariantError,
    GroupMetadata,
)
from tidemill.model.configs import BrokerConfig
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX

FORM_OF_TWO = """
    join A
        Empty -> PreparingRebalance
    join B
    wait 6000
      at 6000
        PreparingRebalance -> CompletingRebalance
        A joined m1 gen=1 range leader=m1 [m1,m2]
        B joined m2 gen=1 range leader=m1 []
    sync B id=m2 gen=1
    sync A id=m1 gen=1 assign=m1:x,m2:y
        log group gen=1 leader=m1 [m1:x,m2:y]
        CompletingRebalance -> Stable
        A assigned range x
        B assigned range y
"""


def test_groups_have_the_defaults_of_kafka() -> None:
    # A standalone broker starts the first rebalance at once.
    clustered = BrokerConfig.of({"zookeeper.connect": "localhost:2181"})
    assert GroupCoordinatorConfig(
        unpacked_bytes_max=UNPACKED_BYTES_MAX
    ) == GroupCoordinatorConfig.from_broker(clustered)


def test_members_that_join_during_the_initial_delay_share_the_first_rebalance() -> None:
    run(FORM_OF_TWO)


def test_the_first_rebalance_waits_no_longer_than_the_rebalance_timeout() -> None:
    run(
        """
        join A rebalance=8000
            Empty -> PreparingRebalance
        wait 2000
        join B rebalance=8000
        wait 3000
        join C rebalance=8000
        wait 2500
        join D rebalance=8000
        wait 500
          at 8000
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=1 range leader=m1 [m1,m2,m3,m4]
            B joined m2 gen=1 range leader=m1 []
            C joined m3 gen=1 range leader=m1 []
            D joined m4 gen=1 range leader=m1 []
        """
    )


def test_a_new_dynamic_member_receives_its_id_first() -> None:
    run(
        """
        join A v=4
            A join MEMBER_ID_REQUIRED m1
        join A v=4 id=m1
            Empty -> PreparingRebalance
        wait 3000
          at 3000
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=1 range leader=m1 [m1]
        """
    )


def test_an_unused_member_id_expires_with_its_group() -> None:
    bench = run(
        """
        join A v=4
            A join MEMBER_ID_REQUIRED m1
        wait 10000
        join A v=4 id=m1
            A join UNKNOWN_MEMBER_ID m1
        """
    )
    assert bench.state_machine.groups == {}
    assert bench.timers == {}
    assert bench.log == []


def test_a_rebalance_waits_for_a_pending_member() -> None:
    run(
        FORM_OF_TWO
        + """
    join A id=m1
        Stable -> PreparingRebalance
    join C v=4
        C join MEMBER_ID_REQUIRED m4
    join B id=m2
    join C v=4 id=m4
        PreparingRebalance -> CompletingRebalance
        A joined m1 gen=2 range leader=m1 [m1,m2,m4]
        B joined m2 gen=2 range leader=m1 []
        C joined m4 gen=2 range leader=m1 []
    """
    )


def test_heartbeats_return_rebalance_in_progress() -> None:
    run(
        FORM_OF_TWO
        + """
    beat id=m1 gen=1
        NONE
    join C
        Stable -> PreparingRebalance
    beat id=m1 gen=1
        REBALANCE_IN_PROGRESS
    join A id=m1
    beat id=m2 gen=1
        REBALANCE_IN_PROGRESS
    join B id=m2
        PreparingRebalance -> CompletingRebalance
        A joined m1 gen=2 range leader=m1 [m1,m2,m3]
        B joined m2 gen=2 range leader=m1 []
        C joined m3 gen=2 range leader=m1 []
    beat id=m1 gen=1
        ILLEGAL_GENERATION
    beat id=m1 gen=2
        NONE
    """
    )


def test_removes_members_that_do_not_rejoin_within_the_rebalance_timeout() -> None:
    run(
        FORM_OF_TWO
        + """
    join C rebalance=5000 session=300000
        Stable -> PreparingRebalance
    join A id=m1 rebalance=5000 session=300000
    wait 9000
    beat id=m2 gen=1
        REBALANCE_IN_PROGRESS
    wait 9000
    beat id=m2 gen=1
        REBALANCE_IN_PROGRESS
    wait 9000
    beat id=m2 gen=1
        REBALANCE_IN_PROGRESS
    wait 9000
    beat id=m2 gen=1
        REBALANCE_IN_PROGRESS
    wait 9000
    beat id=m2 gen=1
        REBALANCE_IN_PROGRESS
    wait 9000
    beat id=m2 gen=1
        REBALANCE_IN_PROGRESS
    wait 6000
      at 66000
        PreparingRebalance -> CompletingRebalance
        A joined m1 gen=2 range leader=m1 [m1,m3]
        C joined m3 gen=2 range leader=m1 []
    beat id=m2 gen=1
        UNKNOWN_MEMBER_ID
    """
    )


def test_the_leader_is_replaced_when_it_does_not_rejoin() -> None:
    run(
        FORM_OF_TWO
        + """
    join B id=m2 protocols=range:new
        Stable -> PreparingRebalance
    wait 10000
      at 16000
        PreparingRebalance -> CompletingRebalance
        B joined m2 gen=2 range leader=m2 [m2:new]
    """
    )


def test_an_expired_session_starts_a_rebalance() -> None:
    run(
        FORM_OF_TWO
        + """
    wait 9000
    beat id=m1 gen=1
        NONE
    wait 1000
      at 16000
        Stable -> PreparingRebalance
    wait 8000
    beat id=m1 gen=1
        REBALANCE_IN_PROGRESS
    join A id=m1
        PreparingRebalance -> CompletingRebalance
        A joined m1 gen=2 range leader=m1 [m1]
    beat id=m2 gen=1
        UNKNOWN_MEMBER_ID
    """
    )


def test_the_last_expired_session_leaves_an_empty_group() -> None:
    run(
        FORM_OF_TWO
        + """
    wait 10000
      at 16000
        Stable -> PreparingRebalance
      at 16000
        PreparingRebalance -> Empty
        log group gen=2 leader=None []
    """
    )


def test_a_heartbeat_sets_no_timer() -> None:
    bench = run(FORM_OF_TWO)
    before = bench.timers_set
    for _ in range(100):
        bench.wait(10)
        bench.play("beat id=m1 gen=1")
    assert bench.timers_set == before


def test_a_rejoin_of_the_leader_starts_a_rebalance_and_of_a_follower_does_not() -> None:
    run(
        FORM_OF_TWO
        + """
    join B id=m2
        B joined m2 gen=1 range leader=m1 []
    sync B id=m2 gen=1
        B assigned range y
    join A id=m1
        Stable -> PreparingRebalance
    """
    )


def test_a_follower_with_new_metadata_starts_a_rebalance() -> None:
    run(
        FORM_OF_TWO
        + """
    join B id=m2 protocols=range:more
        Stable -> PreparingRebalance
    join A id=m1
        PreparingRebalance -> CompletingRebalance
        A joined m1 gen=2 range leader=m1 [m1,m2:more]
        B joined m2 gen=2 range leader=m1 []
    join B id=m2 protocols=range:more
        B joined m2 gen=2 range leader=m1 []
    sync A id=m1 gen=2
        log group gen=2 leader=m1 [m1,m2]
        CompletingRebalance -> Stable
        A assigned range
    """
    )


def test_a_join_before_the_assignment_makes_all_members_rejoin() -> None:
    run(
        """
        join A
            Empty -> PreparingRebalance
        join B
        wait 6000
          at 6000
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=1 range leader=m1 [m1,m2]
            B joined m2 gen=1 range leader=m1 []
        sync B id=m2 gen=1
        join C
            B sync REBALANCE_IN_PROGRESS
            CompletingRebalance -> PreparingRebalance
        sync A id=m1 gen=1 assign=m1:x
            A sync REBALANCE_IN_PROGRESS
        """
    )


def test_a_join_while_the_assignment_is_written_invalidates_it() -> None:
    run(
        """
        manual
        join A
            Empty -> PreparingRebalance
        wait 3000
          at 3000
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=1 range leader=m1 [m1]
        sync A id=m1 gen=1 assign=m1:x
            log group gen=1 leader=m1 [m1:x]
        join B
            A sync REBALANCE_IN_PROGRESS
            CompletingRebalance -> PreparingRebalance
        store
        join A id=m1
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=2 range leader=m1 [m1,m2]
            B joined m2 gen=2 range leader=m1 []
        """
    )


def test_does_not_return_an_assignment_written_after_all_members_rejoined() -> None:
    run(
        """
        manual
        join A
            Empty -> PreparingRebalance
        wait 3000
          at 3000
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=1 range leader=m1 [m1]
        sync A id=m1 gen=1 assign=m1:x
            log group gen=1 leader=m1 [m1:x]
        join B
            A sync REBALANCE_IN_PROGRESS
            CompletingRebalance -> PreparingRebalance
        join A id=m1
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=2 range leader=m1 [m1,m2]
            B joined m2 gen=2 range leader=m1 []
        sync B id=m2 gen=2
        store
        sync A id=m1 gen=2 assign=m1:y,m2:z
            log group gen=2 leader=m1 [m1:y,m2:z]
        store
            CompletingRebalance -> Stable
            A assigned range y
            B assigned range z
        """
    )


def test_does_not_return_an_assignment_that_could_not_be_written() -> None:
    run(
        """
        manual
        join A
            Empty -> PreparingRebalance
        wait 3000
          at 3000
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=1 range leader=m1 [m1]
        sync A id=m1 gen=1 assign=m1:x
            log group gen=1 leader=m1 [m1:x]
        fail COORDINATOR_NOT_AVAILABLE
            A sync COORDINATOR_NOT_AVAILABLE
            CompletingRebalance -> PreparingRebalance
        beat id=m1 gen=1
            REBALANCE_IN_PROGRESS
        """
    )


def test_removes_members_that_do_not_sync() -> None:
    run(
        """
        join A rebalance=20000 session=100000
            Empty -> PreparingRebalance
        join B rebalance=20000 session=100000
        wait 6000
          at 6000
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=1 range leader=m1 [m1,m2]
            B joined m2 gen=1 range leader=m1 []
        sync B id=m2 gen=1
        wait 20000
          at 26000
            B sync REBALANCE_IN_PROGRESS
            CompletingRebalance -> PreparingRebalance
        join B id=m2
            PreparingRebalance -> CompletingRebalance
            B joined m2 gen=2 range leader=m2 [m2]
        """
    )


def test_removes_a_follower_that_does_not_sync_from_the_stable_group() -> None:
    run(
        """
        join A rebalance=20000 session=100000
            Empty -> PreparingRebalance
        join B rebalance=20000 session=100000
        wait 6000
          at 6000
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=1 range leader=m1 [m1,m2]
            B joined m2 gen=1 range leader=m1 []
        sync A id=m1 gen=1 assign=m1:x
            log group gen=1 leader=m1 [m1:x,m2]
            CompletingRebalance -> Stable
            A assigned range x
        wait 20000
          at 26000
            Stable -> PreparingRebalance
        beat id=m2 gen=1
            UNKNOWN_MEMBER_ID
        """
    )


def test_rejects_wrong_generations_and_unknown_members() -> None:
    run(
        FORM_OF_TWO
        + """
    sync A id=m1 gen=0
        A sync ILLEGAL_GENERATION
    sync A id=m1 gen=2
        A sync ILLEGAL_GENERATION
    sync A id=m9 gen=1
        A sync UNKNOWN_MEMBER_ID
    beat id=m9 gen=1
        UNKNOWN_MEMBER_ID
    beat id=m1 gen=0
        ILLEGAL_GENERATION
    join C id=m9
        C join UNKNOWN_MEMBER_ID m9
    leave C ids=m9
        C left NONE UNKNOWN_MEMBER_ID
    """
    )


def test_an_unknown_group_has_no_members() -> None:
    bench = run(
        """
        sync A id=m1 gen=1
            A sync UNKNOWN_MEMBER_ID
        beat id=m1 gen=1
            UNKNOWN_MEMBER_ID
        leave A ids=m1,m2
            A left NONE UNKNOWN_MEMBER_ID UNKNOWN_MEMBER_ID
        join A id=m1
            A join UNKNOWN_MEMBER_ID m1
        """
    )
    assert bench.state_machine.groups == {}


def test_rejects_inconsistent_protocols() -> None:
    run(
        FORM_OF_TWO
        + """
    join C protocols=sticky
        C join INCONSISTENT_GROUP_PROTOCOL
    join C type=connect
        C join INCONSISTENT_GROUP_PROTOCOL
    join B id=m2 protocols=sticky
        B join INCONSISTENT_GROUP_PROTOCOL m2
    sync A id=m1 gen=1 type=connect
        A sync INCONSISTENT_GROUP_PROTOCOL
    sync A id=m1 gen=1 proto=sticky
        A sync INCONSISTENT_GROUP_PROTOCOL
    sync A id=m1 gen=1 type=consumer proto=range
        A assigned range x
    """
    )


@pytest.mark.parametrize("line", ["join A protocols=", "join A type="])
def test_a_member_without_protocols_or_type_creates_no_group(line: str) -> None:
    bench = run(f"{line}\n    A join INCONSISTENT_GROUP_PROTOCOL")
    assert bench.state_machine.groups == {}


def test_selects_the_most_preferred_protocol_that_all_support() -> None:
    run(
        """
        join A protocols=sticky:a/range:b/rr:c
            Empty -> PreparingRebalance
        join B protocols=rr:d/range:e
        join C protocols=range:f/rr:g/sticky:h
        wait 6000
          at 6000
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=1 range leader=m1 [m1:b,m2:e,m3:f]
            B joined m2 gen=1 range leader=m1 []
            C joined m3 gen=1 range leader=m1 []
        """
    )


def test_a_protocol_named_twice_counts_once() -> None:
    run(
        """
        join A protocols=range:a/range:b
            Empty -> PreparingRebalance
        wait 3000
          at 3000
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=1 range leader=m1 [m1:a]
        """
    )


def test_leave_group_starts_a_rebalance_and_may_complete_one() -> None:
    run(
        FORM_OF_TWO
        + """
    leave B ids=m2
        B left NONE NONE
        Stable -> PreparingRebalance
    join C
    leave A ids=m1
        A left NONE NONE
        PreparingRebalance -> CompletingRebalance
        C joined m3 gen=2 range leader=m3 [m3]
    """
    )


def test_a_waiting_member_that_leaves_receives_unknown_member_id() -> None:
    run(
        FORM_OF_TWO
        + """
    join A id=m1
        Stable -> PreparingRebalance
    leave X ids=m1,m9
        A join UNKNOWN_MEMBER_ID
        X left NONE NONE UNKNOWN_MEMBER_ID
    join B id=m2
        PreparingRebalance -> CompletingRebalance
        B joined m2 gen=2 range leader=m2 [m2]
    join C
        CompletingRebalance -> PreparingRebalance
    """
    )


def test_a_pending_member_may_leave() -> None:
    bench = run(
        """
        join A v=4
            A join MEMBER_ID_REQUIRED m1
        leave A ids=m1
            A left NONE NONE
        """
    )
    assert bench.state_machine.groups == {}
    assert bench.timers == {}


def test_a_repeated_request_replaces_the_waiting_one() -> None:
    run(
        FORM_OF_TWO
        + """
    join A id=m1
        Stable -> PreparingRebalance
    join A2 id=m1
        A join REBALANCE_IN_PROGRESS m1
    join B id=m2
        PreparingRebalance -> CompletingRebalance
        A2 joined m1 gen=2 range leader=m1 [m1,m2]
        B joined m2 gen=2 range leader=m1 []
    sync B id=m2 gen=2
    sync B2 id=m2 gen=2
        B sync REBALANCE_IN_PROGRESS
    sync A id=m1 gen=2 assign=m1:p,m2:q
        log group gen=2 leader=m1 [m1:p,m2:q]
        CompletingRebalance -> Stable
        A assigned range p
        B2 assigned range q
    """
    )


def test_a_leader_that_syncs_twice_writes_one_assignment() -> None:
    run(
        """
        manual
        join A
            Empty -> PreparingRebalance
        wait 3000
          at 3000
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=1 range leader=m1 [m1]
        sync A id=m1 gen=1 assign=m1:x
            log group gen=1 leader=m1 [m1:x]
        sync A2 id=m1 gen=1 assign=m1:y
            A sync REBALANCE_IN_PROGRESS
        store
            CompletingRebalance -> Stable
            A2 assigned range x
        """
    )


# Static members.

STATIC_OF_TWO = """
    join A static=ia protocols=range:a
        Empty -> PreparingRebalance
    join B static=ib protocols=range:b
    wait 6000
      at 6000
        PreparingRebalance -> CompletingRebalance
        A joined m1 gen=1 range leader=m1 [m1:a,m2:b]
        B joined m2 gen=1 range leader=m1 []
    sync B id=m2 gen=1 static=ib
    sync A id=m1 gen=1 static=ia assign=m1:x,m2:y
        log group gen=1 leader=m1 [m1:x,m2:y]
        CompletingRebalance -> Stable
        A assigned range x
        B assigned range y
"""


def test_a_static_member_returns_without_a_rebalance() -> None:
    run(
        STATIC_OF_TWO
        + """
    join B2 static=ib protocols=range:b
        log group gen=1 leader=m1 [m1:x,m3:y]
        B2 joined m3 gen=1 range leader=m1 []
    sync B2 id=m3 gen=1 static=ib
        B2 assigned range y
    beat id=m2 gen=1 static=ib
        FENCED_INSTANCE_ID
    join B id=m2 static=ib
        B join FENCED_INSTANCE_ID m2
    sync B id=m2 gen=1 static=ib
        B sync FENCED_INSTANCE_ID
    leave B ids=m2 statics=ib
        B left NONE FENCED_INSTANCE_ID
    commit B t-0=5 id=m2 gen=1 static=ib
        B committed FENCED_INSTANCE_ID
    """
    )


@pytest.mark.parametrize(
    ("version", "reply"),
    [
        (8, "joined m3 gen=1 range leader=m1 []"),
        (9, "joined m3 gen=1 range leader=m3 [m2:b,m3:a] skip"),
    ],
)
def test_a_returning_static_leader_must_not_assign(version: int, reply: str) -> None:
    run(
        STATIC_OF_TWO
        + f"""
    join A2 static=ia protocols=range:a v={version}
        log group gen=1 leader=m3 [m2:y,m3:x]
        A2 {reply}
    sync A2 id=m3 gen=1 static=ia
        A2 assigned range x
    """
    )


def test_a_static_member_with_another_preference_starts_a_rebalance() -> None:
    run(
        """
        join A static=ia protocols=range/rr
            Empty -> PreparingRebalance
        wait 3000
          at 3000
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=1 range leader=m1 [m1]
        sync A id=m1 gen=1 static=ia assign=m1:x
            log group gen=1 leader=m1 [m1:x]
            CompletingRebalance -> Stable
            A assigned range x
        join A2 static=ia protocols=rr/range
            Stable -> PreparingRebalance
            PreparingRebalance -> CompletingRebalance
            A2 joined m2 gen=2 rr leader=m2 [m2]
        """
    )


def test_reverts_a_replacement_that_could_not_be_written() -> None:
    run(
        STATIC_OF_TWO
        + """
    manual
    join B2 static=ib protocols=range:new
        log group gen=1 leader=m1 [m1:x,m3:y]
    fail NOT_COORDINATOR
        B2 join NOT_COORDINATOR
    beat id=m3 gen=1 static=ib
        FENCED_INSTANCE_ID
    beat id=m2 gen=1 static=ib
        NONE
    sync B id=m2 gen=1 static=ib
        B assigned range y
    """
    )


def test_a_static_member_with_its_new_id_is_not_fenced_when_the_write_fails() -> None:
    run(
        STATIC_OF_TWO
        + """
    manual
    join B2 static=ib protocols=range:new
        log group gen=1 leader=m1 [m1:x,m3:y]
    join C static=ic protocols=range:c
        Stable -> PreparingRebalance
    join A id=m1 static=ia protocols=range:a
        PreparingRebalance -> CompletingRebalance
        A joined m1 gen=2 range leader=m1 [m1:a,m3:new,m4:c]
        B2 joined m3 gen=2 range leader=m1 []
        C joined m4 gen=2 range leader=m1 []
    fail NOT_COORDINATOR
    beat id=m3 gen=2 static=ib
        NONE
    beat id=m2 gen=2 static=ib
        FENCED_INSTANCE_ID
    """
    )


def test_a_replacement_with_a_failed_write_stays_in_the_rebalance() -> None:
    # With its old protocols the members would have no protocol that all support.
    run(
        """
        join A static=ia protocols=range session=60000 rebalance=5000
            Empty -> PreparingRebalance
        join B static=ib protocols=range/rr session=60000 rebalance=5000
        join C static=ic protocols=range/rr session=60000 rebalance=5000
        wait 5000
          at 5000
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=1 range leader=m1 [m1,m2,m3]
            B joined m2 gen=1 range leader=m1 []
            C joined m3 gen=1 range leader=m1 []
        sync A id=m1 gen=1 static=ia assign=m1:x,m2:y,m3:z
            log group gen=1 leader=m1 [m1:x,m2:y,m3:z]
            CompletingRebalance -> Stable
            A assigned range x
        sync B id=m2 gen=1 static=ib
            B assigned range y
        sync C id=m3 gen=1 static=ic
            C assigned range z
        manual
        join A2 static=ia protocols=range/rr session=60000 rebalance=5000
            log group gen=1 leader=m4 [m2:y,m3:z,m4:x]
        join B id=m2 static=ib protocols=rr session=60000 rebalance=5000
            Stable -> PreparingRebalance
        fail COORDINATOR_NOT_AVAILABLE
        join C id=m3 static=ic protocols=range/rr session=60000 rebalance=5000
            PreparingRebalance -> CompletingRebalance
            B joined m2 gen=2 rr leader=m4 []
            C joined m3 gen=2 rr leader=m4 []
            A2 joined m4 gen=2 rr leader=m4 [m2,m3,m4]
        """
    )


def test_a_failed_replacement_keeps_the_session_timeout_of_the_member() -> None:
    run(
        STATIC_OF_TWO
        + """
    manual
    join B2 static=ib protocols=range:new session=60000
        log group gen=1 leader=m1 [m1:x,m3:y]
    fail NOT_COORDINATOR
        B2 join NOT_COORDINATOR
    beat id=m2 gen=1 static=ib
        NONE
    beat id=m1 gen=1 static=ia
        NONE
    wait 9000
    beat id=m1 gen=1 static=ia
        NONE
    wait 2000
      at 16000
        Stable -> PreparingRebalance
    """
    )


def test_a_failed_replacement_keeps_the_rebalance_timeout_of_the_member() -> None:
    run(
        """
        join A static=ia protocols=range:a session=60000 rebalance=5000
            Empty -> PreparingRebalance
        join B static=ib protocols=range:b session=60000 rebalance=5000
        wait 5000
          at 5000
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=1 range leader=m1 [m1:a,m2:b]
            B joined m2 gen=1 range leader=m1 []
        sync B id=m2 gen=1 static=ib
        sync A id=m1 gen=1 static=ia assign=m1:x,m2:y
            log group gen=1 leader=m1 [m1:x,m2:y]
            CompletingRebalance -> Stable
            A assigned range x
            B assigned range y
        manual
        join B2 static=ib protocols=range:b session=60000 rebalance=30000
            log group gen=1 leader=m1 [m1:x,m3:y]
        fail NOT_COORDINATOR
            B2 join NOT_COORDINATOR
        join A id=m1 static=ia protocols=range:changed session=60000 rebalance=5000
            Stable -> PreparingRebalance
        wait 6000
          at 10000
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=2 range leader=m1 [m1:changed,m2:b]
        """
    )


def test_a_pending_member_that_leaves_starts_no_rebalance() -> None:
    run(
        STATIC_OF_TWO
        + """
    join C v=4
        C join MEMBER_ID_REQUIRED m3
    leave C ids=m3
        C left NONE NONE
    beat id=m1 gen=1 static=ia
        NONE
    """
    )


def test_a_rebalance_does_not_wait_for_a_pending_member_that_left() -> None:
    run(
        STATIC_OF_TWO
        + """
    join C v=4
        C join MEMBER_ID_REQUIRED m3
    join A id=m1 static=ia protocols=range:new
        Stable -> PreparingRebalance
    join B id=m2 static=ib protocols=range:b
    leave C ids=m3
        C left NONE NONE
        PreparingRebalance -> CompletingRebalance
        A joined m1 gen=2 range leader=m1 [m1:new,m2:b]
        B joined m2 gen=2 range leader=m1 []
    """
    )


def test_a_static_member_that_returns_during_the_assignment_starts_a_rebalance() -> None:
    run(
        """
        join A static=ia
            Empty -> PreparingRebalance
        join B static=ib
        wait 6000
          at 6000
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=1 range leader=m1 [m1,m2]
            B joined m2 gen=1 range leader=m1 []
        sync B id=m2 gen=1 static=ib
        join B2 static=ib
            B sync FENCED_INSTANCE_ID
            CompletingRebalance -> PreparingRebalance
        join A id=m1 static=ia
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=2 range leader=m1 [m1,m3]
            B2 joined m3 gen=2 range leader=m1 []
        """
    )


def test_a_waiting_static_member_is_fenced_by_its_replacement() -> None:
    run(
        STATIC_OF_TWO
        + """
    join A id=m1 static=ia protocols=range:a
        Stable -> PreparingRebalance
    join A2 static=ia protocols=range:a
        A join FENCED_INSTANCE_ID m1
    join B id=m2 static=ib protocols=range:b
        PreparingRebalance -> CompletingRebalance
        B joined m2 gen=2 range leader=m4 []
        A2 joined m4 gen=2 range leader=m4 [m2:b,m4:a]
    """
    )


def test_a_static_member_survives_the_rebalance_timeout_within_its_session() -> None:
    run(
        """
        join A static=ia rebalance=5000 session=60000
            Empty -> PreparingRebalance
        join B static=ib rebalance=5000 session=60000
        wait 5000
          at 5000
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=1 range leader=m1 [m1,m2]
            B joined m2 gen=1 range leader=m1 []
        sync B id=m2 gen=1 static=ib
        sync A id=m1 gen=1 static=ia assign=m1:x,m2:y
            log group gen=1 leader=m1 [m1:x,m2:y]
            CompletingRebalance -> Stable
            A assigned range x
            B assigned range y
        join B id=m2 static=ib protocols=range:new rebalance=5000 session=60000
            Stable -> PreparingRebalance
        wait 5000
          at 10000
            PreparingRebalance -> CompletingRebalance
            B joined m2 gen=2 range leader=m2 [m1,m2:new]
        beat id=m1 gen=1 static=ia
            ILLEGAL_GENERATION
        """
    )


def test_a_group_without_its_static_members_waits_for_their_sessions() -> None:
    run(
        """
        join A static=ia rebalance=5000 session=30000
            Empty -> PreparingRebalance
        wait 3000
          at 3000
            PreparingRebalance -> CompletingRebalance
            A joined m1 gen=1 range leader=m1 [m1]
        sync A id=m1 gen=1 static=ia
            log group gen=1 leader=m1 [m1]
            CompletingRebalance -> Stable
            A assigned range
        join B rebalance=5000
            Stable -> PreparingRebalance
        leave B ids=m2
            B join UNKNOWN_MEMBER_ID
            B left NONE NONE
        wait 30000
          at 33000
            PreparingRebalance -> Empty
            log group gen=2 leader=None []
        """
    )


def test_leave_group_removes_static_members_by_instance_id() -> None:
    run(
        STATIC_OF_TWO
        + """
    leave X ids=-,-,- statics=ib,ic,-
        X left NONE NONE UNKNOWN_MEMBER_ID UNKNOWN_MEMBER_ID
        Stable -> PreparingRebalance
    """
    )


def test_a_static_member_with_a_wrong_instance_is_unknown() -> None:
    run(
        STATIC_OF_TWO
        + """
    beat id=m1 gen=1 static=ix
        UNKNOWN_MEMBER_ID
    beat id=m1 gen=1 static=ib
        FENCED_INSTANCE_ID
    beat id=m1 gen=1
        NONE
    """
    )


# Limits.


def test_a_full_group_rejects_new_members() -> None:
    run(
        FORM_OF_TWO
        + """
    join C
        C join GROUP_MAX_SIZE_REACHED
    join B id=m2
        B joined m2 gen=1 range leader=m1 []
    join A id=m1
        Stable -> PreparingRebalance
    join D v=4
        D join MEMBER_ID_REQUIRED m6
    join E
    join B id=m2
        B join GROUP_MAX_SIZE_REACHED
    """,
        max_size=2,
    )


def test_a_loaded_group_over_a_lowered_limit_shrinks() -> None:
    bench = run(FORM_OF_TWO)
    bench.config.max_size = 1
    bench.lines.clear()
    for line in ["reload", "join B id=m2", "join A id=m1"]:
        bench.play(line)
    assert bench.lines == [
        "    Stable -> Dead",
        "    Stable -> PreparingRebalance",
        "    PreparingRebalance -> CompletingRebalance",
        "    B joined m2 gen=2 range leader=m2 [m2]",
        "    A join GROUP_MAX_SIZE_REACHED",
    ]


# Across coordinators.


def test_a_stable_group_continues_on_another_coordinator() -> None:
    run(
        STATIC_OF_TWO
        + """
    commit A t-0=5 id=m1 gen=1
        log t-0=5
        A committed NONE
    reload
        Stable -> Dead
    beat id=m1 gen=1
        NONE
    sync B id=m2 gen=1 static=ib
        B assigned range y
    beat id=m1 gen=1 static=ib
        FENCED_INSTANCE_ID
    wait 9000
    beat id=m1 gen=1
        NONE
    wait 1000
      at 16000
        Stable -> PreparingRebalance
    join A id=m1 protocols=range:a
        PreparingRebalance -> CompletingRebalance
        A joined m1 gen=2 range leader=m1 [m1:a]
    """
    )


def test_a_resigning_coordinator_responds_to_waiting_members() -> None:
    run(
        """
        join A
            Empty -> PreparingRebalance
        reload
            A join NOT_COORDINATOR m1
            PreparingRebalance -> Dead
        join A id=m1
            A join UNKNOWN_MEMBER_ID m1
        """
    )


# The table of transitions.

AFTER = {
    ("Empty", "REBALANCE"): "PreparingRebalance",
    ("CompletingRebalance", "REBALANCE"): "PreparingRebalance",
    ("Stable", "REBALANCE"): "PreparingRebalance",
    ("PreparingRebalance", "ALL_JOINED"): "CompletingRebalance",
    ("PreparingRebalance", "ALL_LEFT"): "Empty",
    ("CompletingRebalance", "ASSIGN"): "Stable",
    ("Empty", "UNLOAD"): "Dead",
    ("PreparingRebalance", "UNLOAD"): "Dead",
    ("CompletingRebalance", "UNLOAD"): "Dead",
    ("Stable", "UNLOAD"): "Dead",
}


@pytest.mark.parametrize("before", list(GroupState))
@pytest.mark.parametrize("event", range(len(TRANSITIONS.events)))
def test_allows_only_the_transitions_of_the_table(before: GroupState, event: int) -> None:
    group = GroupMetadata("g", 0)
    group.state = before
    after = AFTER.get((before.value, TRANSITIONS.events[event]))
    if after is not None:
        group.transition(event, 7)
        assert (group.state.value, group.state_timestamp_ms) == (after, 7)
    else:
        with pytest.raises(GroupInvariantError, match=f"group g: .* {before.value} cannot handle"):
            group.transition(event, 7)


def test_describe_groups_has_metadata_only_of_a_stable_group() -> None:
    bench = run(STATIC_OF_TWO)
    view = bench.state_machine.describe("g")
    assert (view.state, view.protocol_type, view.protocol_name) == ("Stable", "consumer", "range")
    shown = [(one.member_id, one.instance_id, one.metadata, one.assignment) for one in view.members]
    assert shown == [("m1", "ia", b"a", b"x"), ("m2", "ib", b"b", b"y")]
    bench.play("join C")
    view = bench.state_machine.describe("g")
    assert (view.state, view.protocol_name) == ("PreparingRebalance", "")
    assert {one.metadata for one in view.members} == {b""}
    unknown = bench.state_machine.describe("other")
    assert (unknown.state, unknown.known) == ("Dead", False)


def test_idle_members_have_one_timer_each() -> None:
    bench = Bench(initial_rebalance_delay_ms=0)
    for number in range(1_000):
        bench.join(f"w{number}", group=f"g{number}")
    bench.run_effects()
    bench.wait(1)
    assert len(bench.state_machine.groups) == 1_000
    members = [key for key in bench.timers if key.kind is TimerKind.MEMBER]
    assert len(members) == 1_000
    assert bench.now == Now(monotonic_ms=1, wall_ms=1_700_000_000_001)
