"""A consumer's membership in its group: join, sync, heartbeat, leave.

========  ==========================================================================================
state     what happens
========  ==========================================================================================
UNJOINED  the member gives up what it must, and asks to join
JOINING   JoinGroup is under way; the coordinator answers once all members have come, or their time is up
SYNCING   SyncGroup is under way; the leading member's carries everyone's partitions
STABLE    the partitions are known; heartbeats tell when a new round is due
========  ==========================================================================================

Joining happens in the thread that polls, so that its callbacks run there; heartbeats have a thread of their
own. Both change the state under one lock.

Source: KIP-62 (heartbeat thread, poll interval), KIP-345 (static members), KIP-394 (member id first), KIP-429
(cooperative rebalancing), KIP-559, KIP-814.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, Protocol

from tidemill.client.assignors import Assignor
from tidemill.client.cluster import CONTROL, GROUP, Cluster
from tidemill.client.connection import Connection
from tidemill.client.errors import (
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    RequestTimeout,
    code_of,
    error_for,
)
from tidemill.client.group_commits import MEMBERSHIP_LOST, Commits
from tidemill.client.group_offsets import COORDINATOR_MOVED
from tidemill.client.group_protocol import encode_assignment, subscription_for
from tidemill.client.group_requests import CONSUMER_PROTOCOL, leave_group, read_assignment, read_members
from tidemill.client.request import Request
from tidemill.client.waits import Kind, Wait
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.messages.heartbeat import HeartbeatRequest
from tidemill.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tidemill.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

LOG = logging.getLogger(__name__)

JOIN_GRACE_SECONDS = 5.0
"""How much longer than the rebalance timeout the answer to JoinGroup may take."""


PROBE_S = 6.0
"""How long the coordinator may take to answer a question while a join waits."""


class State(Enum):
    """See the module's table."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


class User(Protocol):
    """What the membership needs from the consumer. Called in the polling thread only."""

    def subscribed_topics(self) -> set[str]:
        """The topics subscribed to now."""
        ...

    def owned(self) -> list[TopicPartition]:
        """The partitions assigned now."""
        ...

    def commit_before_rebalance(self, deadline: float) -> None:
        """Commits positions, where that is automatic. Must not raise."""
        ...

    def revoke(self, items: Sequence[TopicPartition]) -> None:
        """Gives partitions up; they may still be committed."""
        ...

    def lose(self, items: Sequence[TopicPartition]) -> None:
        """Gives partitions up that may belong to others already."""
        ...

    def assign_from_group(self, items: Sequence[TopicPartition], added: Sequence[TopicPartition]) -> None:
        """Takes ``items`` as its partitions now; ``added`` are new."""
        ...

    def wake(self) -> None:
        """Ends a wait in poll(). Called from the heartbeat thread too."""
        ...


class Membership:
    """One member of one group."""

    def __init__(self, cluster: Cluster, assignors: Sequence[Assignor], user: User) -> None:
        config = cluster.config
        self._cluster = cluster
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._user = user
        self.group_id = config.text("group.id")
        self.instance_id: str | None = config["group.instance.id"]
        self._rack: str | None = config["client.rack"] or None
        self._session_ms = config.int("session.timeout.ms")
        self._rebalance_ms = config.int("max.poll.interval.ms")
        self._heartbeat = config.seconds("heartbeat.interval.ms")
        self._backoff = config.seconds("retry.backoff.ms")
        self.cooperative = all(assignor.cooperative for assignor in assignors)
        self.state = State.UNJOINED
        self.member_id = ""
        self.generation = -1
        self.is_subscribed = False
        self.protocol = ""
        self.is_leader = False
        self.rejoin = True
        self._prepared = False
        self._lost = False
        self._fatal: ClientError | None = None
        self._request: Request | None = None
        self._coordinator: int | None = None
        self._is_coordinator_silent = False
        """It did not answer the last question of the heartbeats' thread, during a join."""
        self._reason = ""
        self._counts: dict[str, int] = {}
        self._previous: list[TopicPartition] = []
        self._previous_generation = -1
        self._last_poll = time.monotonic()
        self._last_beat = time.monotonic()
        self._lock = threading.RLock()
        self._signal = threading.Condition(self._lock)
        self._closing = False
        self._thread: threading.Thread | None = None
        self.commits = Commits(self, self._backoff)

    # -- joining: the polling thread ----------------------------------------------------------------------

    def touch(self) -> None:
        """Notes that the user polls."""
        self._last_poll = time.monotonic()

    def request_rejoin(self, reason: str) -> None:
        """Has the next step begin a round."""
        with self._lock:
            self.rejoin = True
            self._reason = reason

    def step(self, deadline: float) -> bool:
        """Goes on towards STABLE, until ``deadline`` at most; True when there.

        Raises what makes membership impossible: FENCED_INSTANCE_ID, rights, no common assignor.
        """
        while True:
            self.touch()
            if self._fatal is not None:
                raise self._fatal
            if self.state is State.STABLE and not self.rejoin and not self._lost:
                return True
            try:
                if not self._advance(deadline):
                    return False
            except ClientError as problem:
                is_moved = problem.code in COORDINATOR_MOVED
                if not is_moved and not isinstance(problem, BrokerUnreachable | RequestTimeout):
                    raise
                LOG.debug("group %s: %s", self.group_id, problem)
                self.forget_coordinator(problem)
                if not self._pause(deadline):
                    return False

    def _advance(self, deadline: float) -> bool:
        """One step; False when ``deadline`` came first."""
        if self._request is None:
            self._prepare(deadline)
            connection = self.connection(deadline)
            self._send_join(connection)
        request = self._request
        if request is None:
            return True
        if not request.connection.wait(request, max(0.0, deadline - time.monotonic())):
            return False
        self._request = None
        try:
            answer = request.response()
        except ClientError:
            with self._lock:
                self.state = State.UNJOINED
            raise
        if self.state is State.JOINING:
            return self._joined(answer, request.connection, deadline)
        return self._synced(answer, deadline)

    def _prepare(self, deadline: float) -> None:
        """Gives up, before joining, what the round could give to others. Once a round."""
        if self._lost:
            self._lost = False
            owned = self._user.owned()
            if owned:
                LOG.warning("group %s went on without this member: %s lost", self.group_id, _named(owned))
                self._user.lose(owned)
            self._prepared = True
        if self._prepared:
            return
        self._prepared = True
        owned = self._user.owned()
        if self.generation >= 0:
            self._previous, self._previous_generation = owned, self.generation
        self._user.commit_before_rebalance(deadline)
        if self.cooperative:
            topics = self._user.subscribed_topics()
            owned = [item for item in owned if item.topic not in topics]
        if owned:
            self._user.revoke(owned)

    def _send_join(self, connection: Connection) -> None:
        topics = self._user.subscribed_topics()
        owned = self._user.owned() if self.cooperative else []
        version = connection.version(ApiKey.JOIN_GROUP)
        protocols = [
            JoinGroupRequestProtocol(
                name=assignor.name,
                metadata=subscription_for(
                    assignor, topics, owned, self._previous, self._previous_generation, self._rack
                ),
            )
            for assignor in self._assignors.values()
        ]
        with self._lock:
            self.state = State.JOINING
            self.rejoin = False
            reason, self._reason = self._reason, ""
        message = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=self._rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id if version >= 5 else None,
            protocol_type=CONSUMER_PROTOCOL,
            protocols=protocols,
            reason=reason or None,
        )
        timeout = self._rebalance_ms / 1000 + JOIN_GRACE_SECONDS
        self._request = connection.send(ApiKey.JOIN_GROUP, message, version=version, timeout=timeout)
        self._start_thread()

    def _joined(self, answer: Any, connection: Connection, deadline: float) -> bool:
        if answer.error_code:
            return self._refused(answer, "join", connection, deadline)
        with self._lock:
            self.member_id = answer.member_id
            self.generation = answer.generation_id
            self.protocol = answer.protocol_name or ""
            self.is_leader = answer.leader == answer.member_id
            self.state = State.SYNCING
            self._cluster.coordinator_trouble.ended(self.group_id)
            self._last_beat = time.monotonic()
        assignments: list[SyncGroupRequestAssignment] = []
        if self.is_leader and not answer.skip_assignment:
            assignments = self._assign(answer, max(deadline, time.monotonic() + JOIN_GRACE_SECONDS))
        version = connection.version(ApiKey.SYNC_GROUP)
        message = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id if version >= 3 else None,
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=self.protocol,
            assignments=assignments,
        )
        timeout = self._rebalance_ms / 1000 + JOIN_GRACE_SECONDS
        self._request = connection.send(ApiKey.SYNC_GROUP, message, version=version, timeout=timeout)
        return True

    def _assign(self, answer: Any, deadline: float) -> list[SyncGroupRequestAssignment]:
        """The leading member's work: everyone's partitions."""
        assignor = self._assignors.get(self.protocol)
        if assignor is None:
            raise error_for(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"lead group {self.group_id!r}",
                detail=f"the coordinator chose {self.protocol!r}",
            )
        members = read_members(answer, self.group_id, self.protocol)
        wanted = {topic for member in members for topic in member.topics}
        if any(topic not in self._cluster.topics for topic in wanted) or self._cluster.needs_refresh():
            self._cluster.refresh(deadline, wanted)
        self._counts = self.counts(wanted)
        result = assignor.assign(self._counts, members)
        LOG.debug("group %s, generation %s: %s", self.group_id, self.generation, result)
        return [
            SyncGroupRequestAssignment(
                member_id=member.member_id, assignment=encode_assignment(result.get(member.member_id, []))
            )
            for member in members
        ]

    def counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Partitions of each topic that is there."""
        known = self._cluster.topics
        return {topic: len(known[topic].partitions) for topic in topics if topic in known}

    def metadata_changed(self) -> None:
        """The leading member begins a round when the partitions that it has shared out are others now."""
        if self.is_leader and self.state is State.STABLE and self._counts:
            now = self.counts(self._counts)
            if now != self._counts and not self._cluster.errors.keys() & self._counts.keys():
                self.request_rejoin("the partitions of a topic changed")

    def _synced(self, answer: Any, deadline: float) -> bool:
        if answer.error_code:
            return self._refused(answer, "sync", None, deadline)
        assigned = read_assignment(answer.assignment, self.group_id)
        with self._lock:
            if self._lost:
                self.state = State.UNJOINED
                return True
            self.state = State.STABLE
            self._prepared = False
        owned = set(self._user.owned())
        revoked = sorted(owned - set(assigned))
        if revoked and self.cooperative:
            self.request_rejoin("partitions were given up")
        try:
            if revoked:
                self._user.revoke(revoked)
        finally:
            self._user.assign_from_group(assigned, sorted(set(assigned) - owned))
        return True

    def _refused(self, answer: Any, what: str, connection: Connection | None, deadline: float) -> bool:
        """What to do after an error in the answer to JoinGroup or SyncGroup."""
        code = code_of(answer.error_code)
        with self._lock:
            self.state = State.UNJOINED
            self.rejoin = True
            if code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
                return True
            if code in MEMBERSHIP_LOST:
                self._reset()
                return True
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                return True
        broker = connection.address if connection else None
        problem = error_for(answer.error_code, f"{what} group {self.group_id!r}", broker=broker)
        if code not in COORDINATOR_MOVED:
            raise problem
        if code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self.forget_coordinator(problem)
        else:
            self._cluster.coordinator_trouble.failed(self.group_id, problem)
        return self._pause(deadline)

    def _reset(self) -> None:
        """Forgets the membership: the next join is a new member's. Under the lock."""
        self.member_id = ""
        self.generation = -1
        self._lost = True
        self.state = State.UNJOINED
        self.rejoin = True

    def lost(self) -> None:
        """A commit was told that the group went on without this member, unless that joins anew already."""
        with self._lock:
            if self.state is not State.JOINING:
                self._reset()

    def _pause(self, deadline: float) -> bool:
        pause = min(self._backoff, deadline - time.monotonic())
        if pause <= 0:
            return False
        time.sleep(pause)
        return True

    # -- the coordinator ----------------------------------------------------------------------------------

    def connection(self, deadline: float) -> Connection:
        """A connection to the coordinator, which is looked up if need be."""
        node_id = self._coordinator
        if node_id is None:
            node_id = self._cluster.coordinator(self.group_id, deadline)
            self._coordinator = node_id
        return self._cluster.connection(node_id, GROUP, deadline)

    def coordinator_answered(self) -> None:
        """The coordinator has taken a request: no trouble with it lasts."""
        self._cluster.coordinator_trouble.ended(self.group_id)

    def forget_coordinator(self, problem: ClientError) -> None:
        """Has the coordinator looked up again before the next request, after ``problem``."""
        self._cluster.coordinator_trouble.failed(self.group_id, problem)
        self._coordinator = None
        self._cluster.request_refresh()

    def waits(self) -> list[Wait]:
        """That the coordinator does not answer, where that is so. From any thread."""
        node_id = self._coordinator
        # While a join is under way, the thread of the heartbeats asks over the other connection.
        blocked = None if node_id is None else self._cluster.blocked(node_id, GROUP, CONTROL)
        if blocked is None or self._cluster.coordinator_trouble.current is not None:
            return []  # The latter is told by the cluster.
        return [Wait(Kind.GROUP, self.group_id, blocked[1], blocked[0])]

    # -- heartbeats: a thread of their own ----------------------------------------------------------------

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._beat_on, name=f"tidemill-heartbeat-{self.group_id}", daemon=True
            )
            self._thread.start()

    def _beat_on(self) -> None:
        while True:
            with self._lock:
                if self._signal.wait_for(lambda: self._closing, self._heartbeat):
                    return
                beating = self.state in (State.STABLE, State.SYNCING) and not self._lost
                idle = time.monotonic() - self._last_poll
            try:
                if not beating:
                    self._look_for_coordinator()
                elif idle > self._rebalance_ms / 1000:
                    self._drop_out(idle)
                else:
                    self._beat()
            except KafkaError as problem:
                LOG.debug("heartbeat of group %s: %s", self.group_id, problem)
                if isinstance(problem, ClientError) and not isinstance(problem, ClientClosed):
                    self._cluster.coordinator_trouble.failed(self.group_id, problem)
                if beating:
                    self._coordinator = None
                else:
                    self._is_coordinator_silent = True
            except Exception:
                LOG.exception("a heartbeat of group %s failed", self.group_id)

    def _look_for_coordinator(self) -> None:
        """Asks the coordinator for anything while a join waits, which may take minutes: does it answer?"""
        node_id, request = self._coordinator, self._request
        if node_id is None or request is None or self._heartbeat <= 0:
            return
        connection = self._cluster.connection(node_id, CONTROL, time.monotonic() + self._heartbeat)
        connection.call(ApiKey.API_VERSIONS, ApiVersionsRequest(), version=0, timeout=PROBE_S)
        if self._is_coordinator_silent:
            self._is_coordinator_silent = False
            self._cluster.coordinator_trouble.ended(self.group_id)

    def _beat(self) -> None:
        deadline = time.monotonic() + self._heartbeat
        connection = self.connection(deadline)
        generation = self.generation
        version = connection.version(ApiKey.HEARTBEAT)
        message = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id if version >= 3 else None,
        )
        answer = connection.call(
            ApiKey.HEARTBEAT, message, version=version, timeout=max(1.0, self._session_ms / 1000)
        )
        code = code_of(answer.error_code)
        with self._lock:
            if generation != self.generation:
                return
            if code == ErrorCode.NONE:
                self._last_beat = time.monotonic()
                self._cluster.coordinator_trouble.ended(self.group_id)
                return
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                if self.state is State.STABLE:
                    self.rejoin = True
                    self._reason = "the group rebalances"
            elif code in MEMBERSHIP_LOST:
                self._reset()
            elif code in COORDINATOR_MOVED:
                self._coordinator = None
                problem = error_for(
                    answer.error_code, f"stay in group {self.group_id!r}", broker=connection.address
                )
                self._cluster.coordinator_trouble.failed(self.group_id, problem)
                return
            else:
                self._fatal = error_for(
                    answer.error_code, f"stay in group {self.group_id!r}", broker=connection.address
                )
        self._user.wake()

    def _drop_out(self, idle: float) -> None:
        """Leaves because the user does not poll: his partitions go to members that do."""
        LOG.warning(
            "group %s: no poll() for %.1f s, more than max.poll.interval.ms=%s: the member leaves; poll more "
            "often, take fewer records at once (max.poll.records), or raise the interval",
            self.group_id,
            idle,
            self._rebalance_ms,
        )
        self._send_leave("the consumer does not poll")
        with self._lock:
            self._reset()

    # -- leaving ------------------------------------------------------------------------------------------

    def _send_leave(self, reason: str) -> None:
        if not self.member_id or self._coordinator is None:
            return
        connection = self._cluster.opened(self._coordinator, GROUP)
        if connection is None:
            return
        leave_group(connection, self.group_id, self.member_id, self.instance_id, reason, timeout=5)

    def leave(self, reason: str, *, even_static: bool = False) -> None:
        """Leaves the group and ends the heartbeats. A static member keeps its place until it comes back."""
        self.stop()
        if self._request is not None and self._coordinator is not None:
            # The answer to a join under way would come first; leaving over another connection is quicker.
            self._request.connection.close()
            self._request = None
            try:
                self._cluster.connection(self._coordinator, GROUP, time.monotonic() + 1)
            except KafkaError:
                return
        if self.instance_id is None or even_static:
            try:
                self._send_leave(reason)
            except KafkaError as problem:
                LOG.debug("leaving group %s: %s", self.group_id, problem)

    def stop(self) -> None:
        """Ends the heartbeats."""
        with self._lock:
            self._closing = True
            self._signal.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._heartbeat + 5)
            self._thread = None


def _named(items: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, items))
