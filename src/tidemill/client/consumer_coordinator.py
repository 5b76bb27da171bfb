"""A consumer's membership in its group: join, sync, heartbeat, leave.

====================  ==============================================================================
state                 meaning
====================  ==============================================================================
UNJOINED              the member has not joined yet
JOIN_PREPARED         the partitions that others may be assigned are revoked; JoinGroup is sent next
REJOIN_PREPARED       the same, and the member sends heartbeats until it sends JoinGroup
PREPARING_REBALANCE   JoinGroup is in flight; the response arrives once all members have joined or
                      timed out
COMPLETING_REBALANCE  SyncGroup is in flight; the request of the group leader has the assignment of
                      all members
STABLE                the assignment is known; heartbeat responses report when a rebalance is due
LOST                  the group rebalanced without this member, whose partitions may have other owners
====================  ==============================================================================

:data:`TRANSITIONS` has the transitions. The polling thread joins, so that the listener runs there; a separate
thread sends heartbeats. Both change the state under one lock.

Source: KIP-62 (heartbeat thread, poll interval), KIP-345 (static members), KIP-394 (member id first), KIP-429
(cooperative rebalancing), KIP-559, KIP-814.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from tidemill.client.assignors import Assignor
from tidemill.client.connection import Connection, InFlightRequest
from tidemill.client.consumer_protocol import encode_assignment, subscription_for
from tidemill.client.errors import (
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    RequestTimeout,
    error_for,
)
from tidemill.client.fetcher import Fetcher
from tidemill.client.group_commits import GroupCommits, log_failed_commit
from tidemill.client.group_requests import (
    CONSUMER_PROTOCOL,
    COORDINATOR_MOVED,
    MEMBERSHIP_LOST,
    leave_group,
    read_assignment,
    read_members,
)
from tidemill.client.network_client import CONTROL, GROUP, NetworkClient
from tidemill.client.subscription_state import SubscriptionState
from tidemill.client.wait_reasons import Kind, Wait
from tidemill.model.errors import ErrorCode, KafkaError
from tidemill.model.transition_table import NONE, TransitionTable
from tidemill.model.types import TopicPartition
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidemill.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidemill.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from tidemill.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

logger = logging.getLogger(__name__)

JOIN_GRACE_S = 5.0
"""How much longer than the rebalance timeout the response to JoinGroup may take."""

PROBE_S = 6.0
"""The timeout of a request that probes the coordinator during a join."""


UNJOINED: Final = 0
JOIN_PREPARED: Final = 1
REJOIN_PREPARED: Final = 2
PREPARING_REBALANCE: Final = 3
COMPLETING_REBALANCE: Final = 4
STABLE: Final = 5
LOST: Final = 6

PREPARE: Final = 0
"""The member prepares a join: it revokes partitions, or drops lost partitions."""
SEND_JOIN: Final = 1
JOINED: Final = 2
SYNCED: Final = 3
FAIL: Final = 4
"""JoinGroup or SyncGroup failed."""
LOSE: Final = 5
"""The coordinator does not know the member, or its generation has ended."""

# fmt: off
TRANSITIONS: Final = TransitionTable(
    "member",
    [
        "UNJOINED", "JOIN_PREPARED", "REJOIN_PREPARED", "PREPARING_REBALANCE", "COMPLETING_REBALANCE",
        "STABLE", "LOST",
    ],
    ["PREPARE", "SEND_JOIN", "JOINED", "SYNCED", "FAIL", "LOSE"],
    [
        [JOIN_PREPARED, NONE, NONE, NONE, NONE, LOST],  # UNJOINED
        [JOIN_PREPARED, PREPARING_REBALANCE, NONE, NONE, NONE, LOST],  # JOIN_PREPARED
        [REJOIN_PREPARED, PREPARING_REBALANCE, NONE, NONE, NONE, LOST],  # REJOIN_PREPARED
        # PREPARING_REBALANCE
        [JOIN_PREPARED, NONE, COMPLETING_REBALANCE, NONE, JOIN_PREPARED, PREPARING_REBALANCE],
        [REJOIN_PREPARED, NONE, NONE, STABLE, JOIN_PREPARED, LOST],  # COMPLETING_REBALANCE
        [REJOIN_PREPARED, NONE, NONE, NONE, NONE, LOST],  # STABLE
        [JOIN_PREPARED, LOST, NONE, LOST, LOST, LOST],  # LOST
    ],
)
# fmt: on
"""PREPARE follows PREPARING_REBALANCE and COMPLETING_REBALANCE if a request could not be sent.

LOSE does not change PREPARING_REBALANCE: the response to JoinGroup decides.
"""

HEARTBEAT_STATES: Final = frozenset({REJOIN_PREPARED, COMPLETING_REBALANCE, STABLE})
"""The states in which the coordinator expects heartbeats."""


class ConsumerCoordinator:
    """The membership of one consumer in its group."""

    def __init__(
        self,
        network_client: NetworkClient,
        assignors: Sequence[Assignor],
        subscriptions: SubscriptionState,
        fetcher: Fetcher,
    ) -> None:
        config = network_client.config
        self._network_client = network_client
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._subscriptions = subscriptions
        self._fetcher = fetcher
        self.group_id = config.str("group.id")
        self.instance_id = config.str("group.instance.id") or None
        self._rack = config.str("client.rack") or None
        self._session_timeout_ms = config.int("session.timeout.ms")
        self._rebalance_timeout_ms = config.int("max.poll.interval.ms")
        self._join_timeout_s = self._rebalance_timeout_ms / 1000 + JOIN_GRACE_S
        self._heartbeat_interval_s = config.seconds("heartbeat.interval.ms")
        self._retry_backoff_s = config.seconds("retry.backoff.ms")
        self.cooperative = all(assignor.cooperative for assignor in assignors)
        self.state: int = UNJOINED
        self.member_id = ""
        self.generation = -1
        self.protocol = ""
        self.is_leader = False
        self._heartbeat_error: ClientError | None = None
        self._listener_error: ClientError | None = None
        """The last error that the listener raised, which is not an error of the membership."""
        self._pending_request: InFlightRequest | None = None
        self._coordinator_id: int | None = None
        self._is_coordinator_silent = False
        """Whether the coordinator did not answer the last probe of the heartbeat thread, during a join."""
        self._rejoin_reason = ""
        """Not empty if the member must rejoin after it is STABLE."""
        self._partition_counts: dict[str, int] = {}
        """The partitions that this member assigned as the group leader; 0 for a topic that did not exist."""
        self._previous_partitions: list[TopicPartition] = []
        self._previous_generation = -1
        self._last_poll = time.monotonic()
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._heartbeat_thread: threading.Thread | None = None
        self.commits = GroupCommits(self, subscriptions, network_client)

    def _transition(self, event: int) -> None:
        with self._lock:
            self.state = TRANSITIONS.after(self.state, event)

    # -- joining: the polling thread ----------------------------------------------------------------------

    def request_rejoin(self, reason: str) -> None:
        """Makes the next :meth:`poll` rejoin the group."""
        with self._lock:
            self._rejoin_reason = reason

    def poll(self, deadline: float) -> bool:
        """Advances towards STABLE, until ``deadline`` or a wakeup() at most; returns True when STABLE.

        Raises PollEnded at a wakeup() during a request for the coordinator or for metadata, and at
        ``deadline`` if a dropped call has not ended. Raises the exceptions of the listener, and the errors
        that prevent membership: FENCED_INSTANCE_ID, authorization, no common assignor. Raises the error of a
        heartbeat once, unless a later heartbeat succeeds first.
        """
        while True:
            self._last_poll = time.monotonic()
            with self._lock:
                heartbeat_error, self._heartbeat_error = self._heartbeat_error, None
            if heartbeat_error is not None:
                raise heartbeat_error
            if self.state == STABLE and not self._rejoin_reason:
                return True
            try:
                if not self._advance(deadline):
                    return False
            except ClientError as problem:
                is_unreachable = isinstance(problem, BrokerUnreachable | RequestTimeout)
                is_retried = is_unreachable or problem.code in COORDINATOR_MOVED
                if not is_retried or problem is self._listener_error:
                    raise
                logger.debug("group %s: %s", self.group_id, problem)
                self.mark_coordinator_unknown(problem)
                if not self._back_off(deadline):
                    return False

    def _advance(self, deadline: float) -> bool:
        """Advances by one request; returns False if ``deadline`` passes or the user ends the poll first."""
        if self._pending_request is None:
            self._prepare_join(deadline)
            self._send_join(self._connection_until_wakeup(deadline))
        request = self._pending_request
        if request is None:
            return True
        if not self._wait_for(request, deadline):
            return False
        self._pending_request = None
        try:
            response = (
                request.response(JoinGroupResponse)
                if self.state == PREPARING_REBALANCE
                else request.response(SyncGroupResponse)
            )
        except ClientError:
            self._transition(FAIL)
            raise
        if isinstance(response, JoinGroupResponse):
            return self._handle_join(response, request.connection, deadline)
        return self._handle_sync(response, deadline)

    def _wait_for(self, request: InFlightRequest, deadline: float) -> bool:
        """Waits for a response; returns False if ``deadline`` passes or the user ends the poll first."""
        connection = request.connection
        while not connection.wait(request, 0.0):
            left_s = min(deadline, request.expires_s) - time.monotonic()
            if left_s <= 0 or not self._fetcher.receive_until_wakeup(left_s, [connection]):
                return False
        return True

    def _prepare_join(self, deadline: float) -> None:
        """Revokes, before joining, the partitions that others may be assigned. Once per rebalance."""
        if self.state == STABLE:
            self._commit_before_join(max(deadline, time.monotonic() + 1))
        with self._lock:
            former = self.state
            self._transition(PREPARE)
        owned = sorted(self._subscriptions.positions)
        if former == LOST and owned:
            names = ", ".join(map(str, owned))
            logger.warning("group %s rebalanced without this member: lost %s", self.group_id, names)
            self._remove_partitions(owned, lost=True)
        if former not in (UNJOINED, STABLE):
            return
        if self.generation >= 0:
            self._previous_partitions, self._previous_generation = owned, self.generation
        if self.cooperative:
            owned = [item for item in owned if item.topic not in self._subscriptions.topics]
        if owned:
            self._remove_partitions(owned)

    def _commit_before_join(self, deadline: float) -> None:
        """Commits the positions, if auto-commit is enabled, and waits until ``deadline``. Logs an error.

        Raises PollEnded at a wakeup() before the commit is sent. A wakeup() afterwards ends only the wait:
        JoinGroup follows the commit on the same connection.
        """
        while offsets := self.commits.auto_commit_offsets():
            try:
                self._connection_until_wakeup(deadline)
                request, generation = self.commits.send(offsets, deadline)
                if self._wait_for(request, deadline):
                    self.commits.check(request, generation)
                return
            except ClientError as problem:
                log_failed_commit(problem)
                if problem.code not in COORDINATOR_MOVED:
                    return
                self.mark_coordinator_unknown(problem)
            if not self._back_off(deadline):
                return

    def auto_commit_if_due(self) -> None:
        """Commits the positions, if the interval of auto-commit has passed. Logs an error.

        Does not wait for the response. Raises PollEnded at a wakeup() before the commit is sent.
        """
        if not self.commits.is_auto_commit_due():
            return
        deadline = time.monotonic() + 1
        try:
            if offsets := self.commits.auto_commit_offsets():
                self._connection_until_wakeup(deadline)
                self.commits.commit_async(offsets, deadline, log_failed_commit)
        except ClientError as problem:
            log_failed_commit(problem)
        self.commits.restart_auto_commit_interval()

    def _send_join(self, connection: Connection) -> None:
        topics = self._subscriptions.topics
        owned = sorted(self._subscriptions.positions) if self.cooperative else []
        version = connection.version(ApiKey.JOIN_GROUP)
        protocols = [
            JoinGroupRequestProtocol(
                name=assignor.name,
                metadata=subscription_for(
                    assignor, topics, owned, self._previous_partitions, self._previous_generation, self._rack
                ),
            )
            for assignor in self._assignors.values()
        ]
        with self._lock:
            self._transition(SEND_JOIN)
            if self.state == LOST:
                return
            reason, self._rejoin_reason = self._rejoin_reason, ""
        message = JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id if version >= 5 else None,
            protocol_type=CONSUMER_PROTOCOL,
            protocols=protocols,
            reason=reason or None,
        )
        self._pending_request = connection.send(
            ApiKey.JOIN_GROUP, message, version=version, timeout=self._join_timeout_s
        )
        self._start_heartbeat_thread()

    def _handle_join(self, response: JoinGroupResponse, connection: Connection, deadline: float) -> bool:
        if response.error_code:
            return self._handle_error(response, "join", connection, deadline)
        with self._lock:
            self.member_id = response.member_id
            self.generation = response.generation_id
            self.protocol = response.protocol_name or ""
            self.is_leader = response.leader == response.member_id
            self._transition(JOINED)
            self._network_client.coordinator_warnings.ended(self.group_id)
        assignments = self._perform_assignment(response, deadline) if self.is_leader else []
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
        self._pending_request = connection.send(
            ApiKey.SYNC_GROUP, message, version=version, timeout=self._join_timeout_s
        )
        return True

    def _perform_assignment(
        self, response: JoinGroupResponse, deadline: float
    ) -> list[SyncGroupRequestAssignment]:
        """Computes the assignment of all members, as the group leader.

        A leader that returns as a static member assigns nothing: the members keep their assignment (KIP-814).
        """
        assignor = self._assignors.get(self.protocol)
        if assignor is None:
            raise error_for(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"lead group {self.group_id!r}",
                detail=f"the coordinator chose {self.protocol!r}",
            )
        deadline = max(deadline, time.monotonic() + JOIN_GRACE_S)
        members = read_members(response, self.group_id, self.protocol)
        wanted = {topic for member in members for topic in member.topics}
        self._network_client.add_topics(wanted)
        if self._network_client.needs_refresh():
            self._fetcher.call_until_wakeup(lambda: self._network_client.refresh(deadline), deadline)
        counts = self._count_partitions(wanted)
        if response.skip_assignment:
            self._partition_counts = {**counts, **self._partition_counts}
            return []
        self._partition_counts = counts
        result = assignor.assign({topic: count for topic, count in counts.items() if count}, members)
        logger.debug("group %s, generation %s: %s", self.group_id, self.generation, result)
        return [
            SyncGroupRequestAssignment(
                member_id=member.member_id, assignment=encode_assignment(result.get(member.member_id, []))
            )
            for member in members
        ]

    def _count_partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """Returns the number of partitions of each topic; 0 for a topic that does not exist."""
        known = self._network_client.topics
        return {topic: len(known[topic].partitions) if topic in known else 0 for topic in topics}

    def metadata_changed(self) -> None:
        """Requests a rebalance, as the group leader, if the partitions that it assigned have changed.

        The partitions of a topic with an error are unknown, and no change.
        """
        if self.is_leader and self.state == STABLE:
            errors = self._network_client.topic_errors
            assigned = {topic: n for topic, n in self._partition_counts.items() if topic not in errors}
            if self._count_partitions(assigned) != assigned:
                self.request_rejoin("the partitions of a topic changed")

    def _handle_sync(self, response: SyncGroupResponse, deadline: float) -> bool:
        if response.error_code:
            return self._handle_error(response, "sync", None, deadline)
        assigned = read_assignment(response.assignment, self.group_id)
        with self._lock:
            self._transition(SYNCED)
            if self.state == LOST:
                return True
        owned = set(self._subscriptions.positions)
        revoked = sorted(owned - set(assigned))
        if revoked and self.cooperative:
            self.request_rejoin("partitions were revoked")
        try:
            if revoked:
                self._remove_partitions(revoked)
        finally:
            self._assign(assigned, sorted(set(assigned) - owned))
        return True

    def _remove_partitions(self, items: Sequence[TopicPartition], *, lost: bool = False) -> None:
        """Removes partitions from the assignment, even if the user's listener raises an exception.

        The listener may commit their offsets, unless they are ``lost``: other members may own them already.
        """
        listener = self._subscriptions.listener
        try:
            if listener is not None:
                self._call_listener(listener.on_lost if lost else listener.on_revoked, items)
        finally:
            self._subscriptions.remove_partitions(items)
            self._fetcher.drop_completed_fetches(items)

    def _assign(self, items: Sequence[TopicPartition], added: Sequence[TopicPartition]) -> None:
        """Adds ``items`` to the assignment; those in ``added`` are new."""
        self._subscriptions.add_partitions(items)
        self._network_client.add_topics(item.topic for item in items)
        self.commits.restart_auto_commit_interval()
        listener = self._subscriptions.listener
        if listener is not None:
            self._call_listener(listener.on_assigned, added)

    def _call_listener(
        self, notify: Callable[[Sequence[TopicPartition]], None], items: Sequence[TopicPartition]
    ) -> None:
        try:
            notify(items)
        except ClientError as problem:
            self._listener_error = problem
            raise

    def _handle_error(
        self,
        response: JoinGroupResponse | SyncGroupResponse,
        operation: str,
        connection: Connection | None,
        deadline: float,
    ) -> bool:
        """Handles an error in the response to JoinGroup or SyncGroup; returns False at ``deadline``."""
        code = ErrorCode.of(response.error_code)
        with self._lock:
            self._transition(FAIL)
            if code == ErrorCode.MEMBER_ID_REQUIRED and isinstance(response, JoinGroupResponse):
                self.member_id = response.member_id
                return True
            if code in MEMBERSHIP_LOST:
                self.membership_lost()
                return True
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                return True
        broker = connection.address if connection else None
        problem = error_for(response.error_code, f"{operation} group {self.group_id!r}", broker=broker)
        if code not in COORDINATOR_MOVED:
            raise problem
        if code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self.mark_coordinator_unknown(problem)
        else:
            self._network_client.coordinator_warnings.failed(self.group_id, problem)
        return self._back_off(deadline)

    def membership_lost(self) -> None:
        """Resets the membership, so that a new member joins, unless JoinGroup is in flight."""
        with self._lock:
            self._transition(LOSE)
            if self.state == LOST:
                self.member_id, self.generation = "", -1

    def _back_off(self, deadline: float) -> bool:
        """Waits before a retry; returns False at ``deadline``, or if the user ends the poll."""
        now = time.monotonic()
        until = min(now + self._retry_backoff_s, deadline)
        if until <= now:
            return False
        while (left_s := until - time.monotonic()) > 0:
            if not self._fetcher.receive_until_wakeup(left_s, []):
                return False
        return True

    # -- the coordinator ----------------------------------------------------------------------------------

    def connection(self, deadline: float) -> Connection:
        """Returns a connection to the coordinator, which is looked up if necessary."""
        node_id = self._coordinator_id
        if node_id is None:
            node_id = self._network_client.find_coordinator(self.group_id, deadline)
            self._coordinator_id = node_id
        return self._network_client.connection(node_id, GROUP, deadline)

    def _connection_until_wakeup(self, deadline: float) -> Connection:
        """As :meth:`connection`, in the polling thread. Raises PollEnded at a wakeup()."""
        node_id = self._coordinator_id
        ready = None if node_id is None else self._network_client.ready_connection(node_id, GROUP)
        return ready or self._fetcher.call_until_wakeup(lambda: self.connection(deadline), deadline)

    def mark_coordinator_unknown(self, problem: ClientError) -> None:
        """Makes the next request look up the coordinator again, after ``problem``."""
        self._network_client.coordinator_warnings.failed(self.group_id, problem)
        self._coordinator_id = None
        self._network_client.request_refresh()

    def waits(self) -> list[Wait]:
        """Returns a wait if the coordinator does not answer. From any thread."""
        node_id = self._coordinator_id
        # During a join, the heartbeat thread probes the coordinator over the control connection.
        if node_id is None or self._network_client.coordinator_warnings.current is not None:
            return []  # NetworkClient reports the latter.
        blocked = self._network_client.unresponsive_reason(node_id, GROUP, CONTROL)
        return [] if blocked is None else [Wait(Kind.GROUP, self.group_id, blocked[1], blocked[0])]

    # -- the heartbeat thread -----------------------------------------------------------------------------

    def _start_heartbeat_thread(self) -> None:
        if self._heartbeat_thread is None:
            self._heartbeat_thread = threading.Thread(
                target=self._run_heartbeats, name=f"tidemill-heartbeat-{self.group_id}", daemon=True
            )
            self._heartbeat_thread.start()

    def _run_heartbeats(self) -> None:
        while not self._stopped.wait(self._heartbeat_interval_s):
            with self._lock:
                is_member = self.state in HEARTBEAT_STATES
                idle = time.monotonic() - self._last_poll
            try:
                if not is_member:
                    self._probe_coordinator()
                elif idle > self._rebalance_timeout_ms / 1000:
                    self._handle_poll_timeout_expiry(idle)
                else:
                    self._send_heartbeat()
            except KafkaError as problem:
                logger.debug("heartbeat of group %s: %s", self.group_id, problem)
                if isinstance(problem, ClientError) and not isinstance(problem, ClientClosed):
                    self._network_client.coordinator_warnings.failed(self.group_id, problem)
                if is_member:
                    self._coordinator_id = None
                else:
                    self._is_coordinator_silent = True
            except Exception:
                logger.exception("a heartbeat of group %s failed", self.group_id)
            request = self._pending_request
            if request is not None and request.done:
                self._fetcher.wake()  # This thread has read the response that the polling thread awaits.

    def _probe_coordinator(self) -> None:
        """Checks that the coordinator answers while a join waits, which may take minutes."""
        node_id, request = self._coordinator_id, self._pending_request
        if node_id is None or request is None or self._heartbeat_interval_s <= 0:
            return
        deadline = time.monotonic() + self._heartbeat_interval_s
        connection = self._network_client.connection(node_id, CONTROL, deadline)
        connection.call(
            ApiKey.API_VERSIONS, ApiVersionsRequest(), ApiVersionsResponse, version=0, timeout=PROBE_S
        )
        if self._is_coordinator_silent:
            self._is_coordinator_silent = False
            self._network_client.coordinator_warnings.ended(self.group_id)

    def _send_heartbeat(self) -> None:
        deadline = time.monotonic() + self._heartbeat_interval_s
        connection = self.connection(deadline)
        generation = self.generation
        version = connection.version(ApiKey.HEARTBEAT)
        message = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id if version >= 3 else None,
        )
        response = connection.call(
            ApiKey.HEARTBEAT,
            message,
            HeartbeatResponse,
            version=version,
            timeout=max(1.0, self._session_timeout_ms / 1000),
        )
        code = ErrorCode.of(response.error_code)
        with self._lock:
            if generation != self.generation:
                return
            if code == ErrorCode.NONE:
                self._heartbeat_error = None
                self._network_client.coordinator_warnings.ended(self.group_id)
                return
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                if self.state == STABLE:
                    self._rejoin_reason = "the group rebalances"
            elif code in MEMBERSHIP_LOST:
                self.membership_lost()
            else:
                problem = error_for(
                    response.error_code, f"stay in group {self.group_id!r}", broker=connection.address
                )
                if code in COORDINATOR_MOVED:
                    self._coordinator_id = None
                    self._network_client.coordinator_warnings.failed(self.group_id, problem)
                    return
                if code == ErrorCode.FENCED_INSTANCE_ID:
                    self.membership_lost()
                self._heartbeat_error = problem
        self._fetcher.wake()

    def _handle_poll_timeout_expiry(self, idle: float) -> None:
        """Ends the membership because the user does not poll: the partitions go to other members.

        Those of a static member go to other members once its session has expired.
        """
        logger.warning(
            "group %s: no poll() for %.1f s, more than max.poll.interval.ms=%s: the membership ends; poll "
            "more often, read fewer records at once (max.poll.records), or raise the interval",
            self.group_id,
            idle,
            self._rebalance_timeout_ms,
        )
        self._send_leave("the consumer does not poll")
        self.membership_lost()

    # -- leaving ------------------------------------------------------------------------------------------

    def _send_leave(self, reason: str) -> None:
        """Sends LeaveGroup, unless the member is static: its place ends only with its session (KIP-345)."""
        if self.instance_id is not None or not self.member_id or self._coordinator_id is None:
            return
        connection = self._network_client.ready_connection(self._coordinator_id, GROUP)
        if connection is not None:
            leave_group(connection, self.group_id, self.member_id, None, reason, timeout=5)

    def prepare_leave(self, deadline: float) -> None:
        """Commits if auto-commit is enabled, revokes the assignment, and waits for the commits in flight."""
        self.commits.auto_commit(deadline)
        owned = sorted(self._subscriptions.positions)
        if owned and self._subscriptions.is_subscribed:
            self._remove_partitions(owned, lost=self.state == LOST)
        self.commits.handle_responses(1.0)

    def leave_group(self, reason: str) -> None:
        """Leaves the group, unless the member is static, and stops the heartbeats."""
        self._stopped.set()
        if self._heartbeat_thread is not None and self._heartbeat_thread is not threading.current_thread():
            self._heartbeat_thread.join(self._heartbeat_interval_s + 5)
            self._heartbeat_thread = None
        if self._pending_request is not None and self._coordinator_id is not None:
            # The response to a join in flight would come first; leaving over a new connection is quicker.
            self._pending_request.connection.close()
            self._pending_request = None
            try:
                self._network_client.connection(self._coordinator_id, GROUP, time.monotonic() + 1)
            except KafkaError:
                return
        try:
            self._send_leave(reason)
        except KafkaError as problem:
            logger.debug("leaving group %s: %s", self.group_id, problem)
