"""Random walks of clients, time and log failures, with invariants."""

from __future__ import annotations

from typing import Any

from groups_bench import Bench
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tidemill.coordinator_runtime.coordinator_effects import Reply
from tidemill.groups.coordinator_effects import GroupState, JoinResult, TimerKey, TimerKind
from tidemill.groups.group_metadata import GroupMetadata
from tidemill.model.errors import ErrorCode

CLIENTS = range(4)


class Client:
    """The state of a consumer: member id, generation, and pending requests."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.member_id = ""
        self.generation = -1
        self.leads = False
        self.members: list[str] = []
        self.static = number >= 2
        self.requests = 0

    @property
    def instance(self) -> dict[str, str]:
        return {"static": f"i{self.number}"} if self.static else {}


class Walk(RuleBasedStateMachine):
    """Four clients, two of them static, of one group."""

    @initialize(delay_ms=st.sampled_from([0, 3_000]), size=st.sampled_from([2, 100]))
    def begin(self, delay_ms: int, size: int) -> None:
        self.bench = Bench(initial_rebalance_delay_ms=delay_ms, max_size=size, offsets_retention_ms=50_000)
        self.bench.manual = True
        self.clients = [Client(number) for number in CLIENTS]
        self.asked: dict[str, Client] = {}
        self.seen: dict[object, int] = {}
        self.group: GroupMetadata | None = None
        self.generation = 0

    def ask(self, client: Client) -> str:
        client.requests += 1
        name = f"{client.number}.{client.requests}"
        self.asked[name] = client
        return name

    def process_responses(self) -> None:
        """Lets clients process their responses."""
        self.bench.run_effects()
        for waiter, replies in self.bench.replies.items():
            for response in replies[self.seen.get(waiter, 0) :]:
                self.on_response(self.asked[str(waiter)], response)
            self.seen[waiter] = len(replies)

    def on_response(self, client: Client, response: Any) -> None:
        if not isinstance(response, JoinResult):
            return
        if response.error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = response.member_id
        elif response.error is ErrorCode.NONE:
            client.member_id = response.member_id
            client.generation = response.generation
            client.leads = response.leader == response.member_id and not response.skip_assignment
            client.members = [one.member_id for one in response.members]
        elif response.error is not ErrorCode.REBALANCE_IN_PROGRESS:
            client.member_id = ""

    @rule(
        number=st.sampled_from(CLIENTS),
        fresh=st.booleans(),
        version=st.sampled_from([3, 4, 9]),
        protocols=st.sampled_from(["range:a", "range:b", "range:a/rr:a", "rr:c/range:c", "sticky"]),
        session=st.sampled_from([6_000, 30_000]),
        rebalance=st.sampled_from([5_000, 40_000]),
    )
    def join(
        self, number: int, fresh: bool, version: int, protocols: str, session: int, rebalance: int
    ) -> None:
        client = self.clients[number]
        if fresh:
            client.member_id = ""
        given: dict[str, Any] = {
            "protocols": protocols,
            "session": session,
            "rebalance": rebalance,
            "v": version,
        }
        self.bench.join(self.ask(client), id=client.member_id, **given, **client.instance)
        self.process_responses()

    @rule(number=st.sampled_from(CLIENTS), late=st.booleans())
    def sync(self, number: int, late: bool) -> None:
        client = self.clients[number]
        generation = client.generation - late
        assign = ",".join(f"{one}:{generation}" for one in client.members) if client.leads else ""
        self.bench.sync(
            self.ask(client), id=client.member_id, gen=generation, assign=assign, **client.instance
        )
        self.process_responses()

    @rule(number=st.sampled_from(CLIENTS))
    def beat(self, number: int) -> None:
        client = self.clients[number]
        self.bench.beat(id=client.member_id, gen=client.generation, **client.instance)
        self.process_responses()

    @rule(number=st.sampled_from(CLIENTS), by_instance=st.booleans())
    def leave(self, number: int, by_instance: bool) -> None:
        client = self.clients[number]
        ids = "-" if by_instance or not client.member_id else client.member_id
        self.bench.leave(self.ask(client), ids=ids, statics=client.instance.get("static", "-"))
        self.process_responses()

    @rule(number=st.sampled_from(CLIENTS), outside=st.booleans(), offset=st.integers(0, 99))
    def commit(self, number: int, outside: bool, offset: int) -> None:
        client = self.clients[number]
        given = {} if outside else {"id": client.member_id, "gen": client.generation}
        self.bench.commit(self.ask(client), f"t-{number}={offset}", **given)
        self.process_responses()

    @rule(number=st.sampled_from(CLIENTS), partition=st.sampled_from(CLIENTS))
    def forget(self, number: int, partition: int) -> None:
        self.bench.forget(self.ask(self.clients[number]), f"t-{partition}")
        self.process_responses()

    @rule(number=st.sampled_from(CLIENTS))
    def delete(self, number: int) -> None:
        self.bench.play(f"delete {self.ask(self.clients[number])}")
        self.process_responses()

    @rule(duration_ms=st.sampled_from([1, 2_999, 6_000, 60_000]))
    def wait(self, duration_ms: int) -> None:
        self.bench.wait(duration_ms)
        self.process_responses()

    @rule()
    def expire(self) -> None:
        self.bench.play("expire")
        self.process_responses()

    @precondition(lambda self: self.bench.appends)
    @rule(good=st.sampled_from([True, True, True, False]))
    def append_ends(self, good: bool) -> None:
        if good:
            self.bench.store()
        else:
            self.bench.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.process_responses()

    @rule(size=st.sampled_from([1, 2, 4]))
    def work_together(self, size: int) -> None:
        """Clients follow the protocol for some time, so that many walks start from a stable group."""
        for _ in range(4):
            for client in self.clients[:size]:
                if not self.waits(client):
                    given = {"id": client.member_id, "session": 30_000, "v": 9, **client.instance}
                    self.bench.join(self.ask(client), **given)
                    self.process_responses()
                self.store_all()
            self.bench.wait(3_000)
            self.process_responses()
            for client in self.clients[:size]:
                if client.member_id and not self.waits(client):
                    self.sync(client.number, False)
            self.store_all()

    def waits(self, client: Client) -> bool:
        return any(not self.bench.replies.get(name) for name, one in self.asked.items() if one is client)

    def store_all(self) -> None:
        while self.bench.appends:
            self.bench.store()
        self.process_responses()

    @rule()
    def moves(self) -> None:
        while self.bench.appends:
            self.bench.fail(ErrorCode.NOT_COORDINATOR)
        self.process_responses()
        before = dict(self.bench.state_machine.groups)
        self.bench.reload()
        after = self.bench.state_machine.groups
        assert set(after) <= set(before), "the log has a group that memory had forgotten"
        assert {name: one.offsets for name, one in after.items() if one.offsets} == {
            name: one.offsets for name, one in before.items() if one.offsets
        }
        self.process_responses()
        waiting = [name for name in self.asked if not self.bench.replies.get(name)]
        assert waiting == [], "a waiting request received no response when the coordinator moved"

    @invariant()
    def every_request_has_at_most_one_response(self) -> None:
        assert all(len(replies) == 1 for replies in self.bench.replies.values())

    @invariant()
    def requests_without_a_response_are_pending(self) -> None:
        waited = set()
        for group in self.bench.state_machine.groups.values():
            for member in group.members.values():
                waited.update({member.joining, member.syncing})
        for append in self.bench.appends:
            waited.add(getattr(append.then, "waiter", None))
        for effect in self.bench.state_machine.take_effects():
            assert not isinstance(effect, Reply), "an effect was left behind"
        unanswered = {name for name in self.asked if name not in self.bench.replies}
        assert unanswered == {name for name in waited if name is not None}

    @invariant()
    def the_group_is_consistent(self) -> None:
        for group in self.bench.state_machine.groups.values():
            check(group)
            if group is self.group:
                assert group.generation >= self.generation
            self.group, self.generation = group, group.generation

    @invariant()
    def members_have_a_session_timer(self) -> None:
        for group in self.bench.state_machine.groups.values():
            for member in group.members.values():
                if not member.awaits_response:
                    key = TimerKey(TimerKind.MEMBER, group.group_id, member.member_id)
                    assert key in self.bench.timers, f"{member.member_id} has no session timer"
            for member_id in group.pending_joins:
                assert TimerKey(TimerKind.PENDING_JOIN, group.group_id, member_id) in self.bench.timers
            if group.state is GroupState.PREPARING_REBALANCE:
                assert TimerKey(TimerKind.JOIN, group.group_id) in self.bench.timers

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        while self.bench.appends:
            self.bench.store()
        self.bench.manual = False
        self.bench.wait(10_000_000)
        self.bench.run_effects()
        for group in self.bench.state_machine.groups.values():
            assert group.state is GroupState.EMPTY, "the group still has members after all clients left"
        assert not [key for key in self.bench.timers if key.kind is TimerKind.MEMBER]


def check(group: GroupMetadata) -> None:
    """Checks the invariants of a group."""
    members = group.members
    assert group.awaiting_join == sum(one.joining is not None for one in members.values())
    assert group.static_members == {
        one.instance_id: member_id for member_id, one in members.items() if one.instance_id is not None
    }
    assert (group.leader in members) if members else (group.leader is None)
    assert group.pending_syncs <= set(members)
    assert not group.pending_joins & set(members)
    counts: dict[str, int] = {}
    for member in members.values():
        for protocol in member.protocols:
            counts[protocol.name] = counts.get(protocol.name, 0) + 1
    assert dict(group.protocol_counts) == counts
    if members:
        assert len(members) in counts.values(), "no protocol is everybody's"
    if group.state is GroupState.EMPTY:
        assert not members
    if group.state is GroupState.STABLE:
        assert members
        given = {one.assignment for one in members.values()} - {b""}
        assert len(given) <= 1, "assignments of two generations are handed out together"
        assert given <= {str(group.generation).encode()}
    for member in members.values():
        assert member.syncing is None or group.state is GroupState.COMPLETING_REBALANCE


WalkTest = Walk.TestCase
WalkTest.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
