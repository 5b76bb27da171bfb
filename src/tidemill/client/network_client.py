"""The client's metadata of the cluster (brokers, topics, leaders) and its connections to the brokers.

Each purpose has its own connection to a broker, because a broker answers the requests of a connection in
order: a commit must not wait behind a long poll.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

from tidemill.client import wait_reasons
from tidemill.client.authentication import Security
from tidemill.client.background_update import BackgroundUpdate
from tidemill.client.cluster_metadata import Node, Partition, Topic, topic_image
from tidemill.client.config import ClientConfig
from tidemill.client.connection import Connection
from tidemill.client.connection_attempts import (
    BrokerFailures,
    ConnectionAttempts,
    Opener,
    no_response_text,
    slow_open_text,
)
from tidemill.client.coordinator_warnings import CoordinatorWarnings
from tidemill.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    ConnectionAttemptPending,
    RequestTimeout,
    as_client_error,
    check,
    error_for,
)
from tidemill.client.wait_reasons import Kind, Wait
from tidemill.model.configs.listeners import join_address
from tidemill.model.errors import ErrorCode, TidemillError
from tidemill.model.types import ZERO_ID
from tidemill.wire.apis import ApiKey, ResponseT
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidemill.wire.schema import Struct

logger = logging.getLogger(__name__)

DATA, CONTROL, GROUP, TRANSACTION = "data", "control", "group", "transaction"
"""Purposes of connections: records, requests for metadata and commands, the coordinators."""

COORDINATOR_TYPES = {GROUP: 0, TRANSACTION: 1}
"""The types of coordinators in FindCoordinator."""

COORDINATED = {GROUP: Kind.GROUP, TRANSACTION: Kind.TRANSACTIONAL_ID}
"""What waits for a coordinator."""

ANY_BROKER = -1
"""The key of the failures of all brokers and bootstrap servers together."""

LATE_S = 5.0
"""A connection with a request unanswered for this long is skipped if there is another broker."""

METADATA_S = 10.0
"""The minimum timeout of a request for metadata or for a coordinator."""

SLOW_S = 1.0
"""Waits up to this long are not reported."""

WAITING_APIS = frozenset({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""APIs whose responses may be delayed by the broker; their senders set the timeout."""


class PollEnded(Exception):
    """The current poll() of the user ends: it makes no further request that it would wait for."""


class NetworkClient:
    """The metadata and connections of one client, shared by its threads."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, Topic] = {}
        self.topic_names: dict[bytes, str] = {}
        self.topic_errors: dict[str, int] = {}
        self.controller_id = -1
        self.cluster_id: str | None = None
        self.metadata_version = 0
        self.closed = False
        self.needs_all_topics = False
        """Whether each refresh reads all topics, for subscriptions by pattern."""
        self.allow_auto_topic_creation = False
        """Whether a requested topic that does not exist may be created."""
        self._background_refresh = BackgroundUpdate(config.seconds("retry.backoff.ms"))
        self._requested_topics: set[str] = set()
        self._refreshed_at = 0.0
        self._stale = True
        self._security = Security(config)
        self._authentication_error: ClientError | None = None
        self._lock = threading.RLock()
        self._outage: tuple[float, str] | None = None
        """The time of the first request for metadata or a command that no broker answers, and the reason."""
        self.retrying: tuple[float, str] | None = None
        """The time of the first attempt at a request that brokers cannot answer yet, and the reason."""
        self._refresh_lock = threading.Lock()
        self.dropped_call: threading.Thread | None = None
        """The thread of an abandoned call, which ends at its next retry."""
        self._connections: dict[tuple[int, str], Connection] = {}
        self._bootstrap: Connection | None = None
        self.coordinator_warnings = CoordinatorWarnings()
        self._opening: set[tuple[int, str]] = set()
        self._random = random.Random()
        self._attempts = ConnectionAttempts()
        self._broker_failures = BrokerFailures(config, self._random)
        self._unreachable = BrokerFailures(config, self._random)
        """The attempts in which no broker and no bootstrap server could be reached, under ANY_BROKER."""
        wait_reasons.register(self)

    # -- connections --------------------------------------------------------------------------------------

    def connection(self, node_id: int, purpose: str, deadline: float) -> Connection:
        """Returns a connection to a broker, opening it if necessary after the pause that follows a failure.

        Raises BrokerUnreachable if it cannot be opened, or if the pause ends after ``deadline`` (monotonic).
        """
        while True:
            found = self.ready_connection(node_id, purpose)
            if found is not None:
                return found
            pause = self.connection_delay(node_id)
            if pause <= 0:
                return self._open(node_id, purpose)
            if time.monotonic() + pause > deadline:
                node = self.nodes.get(node_id)
                failure = self._broker_failures.reason(node_id)
                raise BrokerUnreachable(
                    f"broker {node.address if node else node_id} is not tried again within the timeout: "
                    f"{failure[1] if failure else 'it failed a moment ago; is it running?'}",
                    broker=node.address if node else None,
                )
            self.pause(pause)

    def ready_connection(self, node_id: int, purpose: str) -> Connection | None:
        """Returns the open connection to a broker, if any; closes one that was idle too long instead."""
        found = self._connections.get((node_id, purpose))
        if found is None or found.closed:
            return None
        idle_s = self.config.seconds("connections.max.idle.ms")
        now = time.monotonic()
        if found.in_flight == 0 and (0 <= idle_s < now - found.last_used_s or found.is_session_expired(now)):
            found.close()
            return None
        return found

    def open_in_background(self, node_id: int, purpose: str, done: Callable[[], None]) -> None:
        """Opens a connection in a separate thread, then calls ``done``; no-op while one is being opened.

        For threads that serve several brokers and must not block on one of them.
        """
        key = (node_id, purpose)

        def run() -> None:
            try:
                self._open(node_id, purpose)
            except TidemillError as problem:
                self._keep_authentication_error(problem)
                self.request_refresh()
            finally:
                with self._lock:
                    self._opening.discard(key)
                done()

        with self._lock:
            if key not in self._opening and self.connection_delay(node_id) <= 0 and not self.closed:
                threading.Thread(target=run, name=f"tidemill-connect-{node_id}", daemon=True).start()
                self._opening.add(key)  # The thread waits for the lock before it removes the key.

    def _keep_authentication_error(self, problem: TidemillError) -> None:
        """Keeps a helper thread's error that a retry does not fix, to be raised in the caller's thread."""
        error = as_client_error(problem)
        if isinstance(error, AuthenticationFailed):
            self._authentication_error = error

    def raise_authentication_error(self) -> None:
        """Raises, once, the AuthenticationFailed that a helper thread received."""
        error, self._authentication_error = self._authentication_error, None
        if error is not None:
            raise error

    def connection_delay(self, node_id: int) -> float:
        """Seconds until a failed broker may be tried again; 0 if it may be tried now."""
        return self._broker_failures.delay(node_id)

    def _open(self, node_id: int, purpose: str) -> Connection:
        self._check_open(None)
        node = self.nodes.get(node_id)
        if node is None:
            there = ", ".join(map(str, sorted(self.nodes)[:20])) or "none"
            raise BrokerUnreachable(
                f"broker {node_id} is not in the metadata, which has {there}; start it, or name another"
            )
        made = Connection(node.host, node.port, self.config, node_id, self._security)
        try:
            self._attempts.open(made)
        except TidemillError as problem:
            self.record_failure(node_id, problem)
            raise
        with self._lock:
            self._broker_failures.clear(node_id)
            other = self.ready_connection(node_id, purpose)
            if other is not None:
                made.close()
                return other
            self._connections[node_id, purpose] = made
        self._check_open(made)
        return made

    def _check_open(self, made: Connection | None) -> None:
        """Raises ClientClosed if the client is closed, after closing a connection opened meanwhile."""
        if self.closed:
            if made is not None:
                made.close()
            raise ClientClosed("the client is closed", ErrorCode.NETWORK_EXCEPTION)

    def record_failure(self, node_id: int, problem: TidemillError | None = None) -> None:
        """Records a failure: the broker is not tried during a growing pause."""
        self._broker_failures.record(node_id, problem)

    def any_connection(self, deadline: float) -> Connection:
        """Returns an open connection, or a new one to a known broker or one of ``bootstrap.servers``.

        A broker that does not answer delays no call: others are tried in parallel. Raises BrokerUnreachable
        at ``deadline`` (monotonic); AuthenticationFailed if no broker accepts the login.
        """
        failure: BrokerUnreachable | None = None
        # The pause after the failure of an earlier call.
        pause_s = min(self._unreachable.delay(ANY_BROKER), deadline - time.monotonic())
        while (found := self._responding_connection()) is None:
            if pause_s > 0:
                self.pause(pause_s)
                pause_s = 0.0
                continue  # A connection may have opened meanwhile.
            try:
                found = self._attempts.open_first(self._openers(), deadline)
                break
            except ConnectionAttemptPending as problem:
                raise failure or problem from None  # The earlier error says more than a timeout.
            except BrokerUnreachable as problem:
                failure = problem
                self._unreachable.record(ANY_BROKER)
                pause_s = self._unreachable.delay(ANY_BROKER)
                if self.closed or time.monotonic() + pause_s >= deadline:
                    raise
                self._note_outage(problem)
        self._unreachable.clear(ANY_BROKER)
        if failure is not None:
            self._outage = None  # The next request has its own outage.
        return found

    def _responding_connection(self) -> Connection | None:
        return next((c for c in self._control_connections() if not c.closed and not _is_late(c)), None)

    def _control_connections(self) -> list[Connection]:
        """Returns the connections for requests that any broker can answer; some may be closed."""
        control = [c for (_, purpose), c in list(self._connections.items()) if purpose == CONTROL]
        return control if self._bootstrap is None else [*control, self._bootstrap]

    def pause(self, pause_s: float) -> None:
        """Waits before a retry. Raises PollEnded in the thread of a dropped call."""
        time.sleep(pause_s)
        if threading.current_thread() is self.dropped_call:
            raise PollEnded

    def back_off(self, problem: ClientError, deadline: float) -> None:
        """Waits ``retry.backoff.ms`` before a retry; raises ``problem`` if that ends after ``deadline``."""
        if not self.wait_for_retry(deadline):
            raise problem

    def wait_for_retry(self, deadline: float) -> bool:
        """As :meth:`back_off`, but returns False at once if the pause ends after ``deadline``."""
        pause_s = self.config.seconds("retry.backoff.ms")
        if time.monotonic() + pause_s >= deadline:
            return False
        self.pause(pause_s)
        return True

    def _openers(self) -> list[Opener]:
        """Returns the brokers that may be tried now, in the order of the attempts."""
        nodes = [node for node in self.nodes.values() if self.connection_delay(node.node_id) <= 0]
        servers = list(self.config["bootstrap.servers"])
        self._random.shuffle(nodes)
        self._random.shuffle(servers)
        found = [Opener(n.node_id, n.address, partial(self._open, n.node_id, CONTROL)) for n in nodes]
        known = {node.address for node in nodes}
        for host, port in servers:
            address = join_address(host, port)
            if address not in known:
                found.append(Opener(address, address, partial(self._open_server, host, port)))
        return found

    def _open_server(self, host: str, port: int) -> Connection:
        made = Connection(host, port, self.config, security=self._security)
        self._attempts.open(made)
        with self._lock:
            other = self._bootstrap  # Another thread may have opened it meanwhile.
            if other is not None and not other.closed:
                made.close()
                return other
            self._bootstrap = made
        self._check_open(made)
        return made

    # -- metadata -----------------------------------------------------------------------------------------

    def request_refresh(self) -> None:
        """Marks the metadata as stale, so that it is read again before its next use."""
        self._stale = True

    def needs_refresh(self) -> bool:
        """Whether the metadata is stale or too old."""
        age_s = time.monotonic() - self._refreshed_at
        return self._stale or age_s > self.config.seconds("metadata.max.age.ms")

    def refresh(
        self,
        deadline: float,
        topics: Iterable[str] | None = None,
        *,
        every: bool = False,
        create: bool | None = None,
    ) -> None:
        """Reads the metadata of ``topics`` and of the topics requested before, or of ``every`` topic.

        Errors of topics are stored in ``topic_errors``; errors of the request are raised. Raises
        RequestTimeout if another call reads metadata until ``deadline`` (monotonic).
        """
        if create is None:
            create = self.allow_auto_topic_creation
        if not self._refresh_lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            reason = self._outage[1] if self._outage is not None else "no broker has answered yet"
            raise RequestTimeout(f"another call reads the metadata: {reason}")
        try:
            self._stale = False
            self._refresh(deadline, topics, every or self.needs_all_topics, create)
        except BaseException:
            self._stale = True
            raise
        finally:
            self._refresh_lock.release()

    def refresh_in_background(self, done: Callable[[], None]) -> None:
        """Reads the metadata in a separate thread, then calls ``done``; no-op while a read is in progress.

        :meth:`raise_authentication_error` raises an error that a retry does not fix.
        """
        if not self.closed:
            self._background_refresh.start(self.refresh, self._keep_authentication_error, done)

    def _refresh(self, deadline: float, topics: Iterable[str] | None, every: bool, create: bool) -> None:
        if topics is not None:
            self._requested_topics.update(topics)
        failure: ClientError | None = None
        while True:
            try:
                connection = self.any_connection(deadline)
                version = connection.version(ApiKey.METADATA)
                names = sorted(self._requested_topics)
                wanted = None if every else [MetadataRequestTopic(name=name) for name in names]
                if not every and version == 0 and not wanted:
                    wanted = [MetadataRequestTopic(name="")]  # an empty list means every topic in version 0
                if every and version == 0:
                    wanted = []
                request = MetadataRequest(topics=wanted, allow_auto_topic_creation=create or version < 4)
                response = connection.call(
                    ApiKey.METADATA,
                    request,
                    MetadataResponse,
                    version=version,
                    timeout=self.response_timeout_s(deadline),
                )
                check(response.error_code, "read metadata", broker=connection.address)
                self._apply_metadata(response, every)
                self._outage = None
                return
            except (BrokerUnreachable, RequestTimeout) as problem:
                if failure is None or not isinstance(problem, ConnectionAttemptPending):
                    failure = problem  # Otherwise the earlier error says more.
                self._note_outage(failure)
            self.back_off(failure, deadline)

    def response_timeout_s(self, deadline: float) -> float:
        """The timeout, in seconds, of a request that another broker can answer as well."""
        left_s = deadline - time.monotonic()
        return min(self.config.seconds("request.timeout.ms"), max(METADATA_S, left_s))

    def _apply_metadata(self, response: MetadataResponse, every: bool) -> None:
        with self._lock:
            self.nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in response.brokers}
            self.controller_id = response.controller_id
            self.cluster_id = response.cluster_id
            found: dict[str, Topic] = {}
            for item in response.topics:
                if item.name is None:
                    continue
                if item.error_code:
                    self.topic_errors[item.name] = item.error_code
                    if ErrorCode.of(item.error_code) != ErrorCode.LEADER_NOT_AVAILABLE:
                        self.topics.pop(item.name, None)
                    continue
                self.topic_errors.pop(item.name, None)
                found[item.name] = topic_image(item.name, item, self.topics.get(item.name))
            if every:
                self.topics = found
            else:
                self.topics.update(found)
            self.topic_names = {t.topic_id: t.name for t in self.topics.values() if t.topic_id != ZERO_ID}
            self._refreshed_at = time.monotonic()
            self.metadata_version += 1

    def add_topics(self, topics: Iterable[str]) -> None:
        """Adds ``topics`` to those that each refresh reads; requests a refresh if the metadata lacks one."""
        added = set(topics)
        self._requested_topics |= added
        if not added <= self.topics.keys():
            self._stale = True

    def remove_topic(self, topic: str) -> None:
        """Removes ``topic`` from the metadata and from those that are read."""
        self._requested_topics.discard(topic)
        self.topics.pop(topic, None)

    def topic(self, name: str, deadline: float, *, partition: int = 0, create: bool = False) -> Topic:
        """Returns a topic's metadata; waits for a topic that is being created.

        Reads it if the topic or ``partition`` is unknown, since partitions may have been added.
        """
        while True:
            found = self.topics.get(name)
            if found is not None and found.partitions and partition < len(found.partitions):
                return found
            self.refresh(deadline, [name], create=create)
            found = self.topics.get(name)
            if found is not None and found.partitions:
                return found
            code = self.topic_errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            failure = error_for(code, f"use topic {name!r}", topic=name)
            if not failure.retriable or (code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not create):
                self._requested_topics.discard(name)
                raise failure
            self.back_off(failure, deadline)

    def leader(self, topic: str, partition: int) -> int:
        """Returns the node id of a partition's leader; -1 if none is known."""
        found = self.partition(topic, partition)
        return -1 if found is None else found.leader

    def partition(self, topic: str, partition: int) -> Partition | None:
        """Returns a partition in the metadata; None if it is unknown."""
        found = self.topics.get(topic)
        return None if found is None or partition >= len(found.partitions) else found.partitions[partition]

    # -- calls --------------------------------------------------------------------------------------------

    def call_any(
        self, key: ApiKey, message: Struct, response_type: type[ResponseT], deadline: float
    ) -> ResponseT:
        """Sends a request to any broker; tries others while brokers fail, until ``deadline``."""
        while True:
            try:
                response = self.any_connection(deadline).call(key, message, response_type)
                self._outage = None
                return response
            except (BrokerUnreachable, RequestTimeout) as problem:
                self._note_outage(problem)
                self.back_off(problem, deadline)

    def find_coordinator(self, name: str, deadline: float, kind: str = GROUP) -> int:
        """Returns the node id of the coordinator of a group, or of a transactional id."""
        while True:
            connection = self.any_connection(deadline)
            version = connection.version(ApiKey.FIND_COORDINATOR)
            request = FindCoordinatorRequest(key_type=COORDINATOR_TYPES[kind])
            if version >= 4:
                request.coordinator_keys = [name]
            else:
                request.key = name
            try:
                response = connection.call(
                    ApiKey.FIND_COORDINATOR,
                    request,
                    FindCoordinatorResponse,
                    version=version,
                    timeout=self.response_timeout_s(deadline),
                )
                found = (
                    connection.only_result(ApiKey.FIND_COORDINATOR, response.coordinators)
                    if version >= 4
                    else response
                )
                if not found.error_code:
                    with self._lock:
                        known = self.nodes.get(found.node_id)
                        if known is None or (known.host, known.port) != (found.host, found.port):
                            self.nodes = {
                                **self.nodes,
                                found.node_id: Node(found.node_id, found.host, found.port),
                            }
                    return int(found.node_id)
                failure: ClientError = error_for(
                    found.error_code,
                    f"find the coordinator of {COORDINATED[kind].value} {name!r}",
                    detail=found.error_message,
                    broker=connection.address,
                )
            except (BrokerUnreachable, RequestTimeout) as problem:
                failure = problem
            if not failure.retriable:
                raise failure
            self.coordinator_warnings.failed(name, failure, COORDINATED[kind])
            self.back_off(failure, deadline)

    # -- reported waits -----------------------------------------------------------------------------------

    def _note_outage(self, problem: ClientError) -> None:
        self._outage = (self._outage[0] if self._outage else time.monotonic(), str(problem))

    def unresponsive_reason(self, node_id: int, *purposes: str) -> tuple[float, str] | None:
        """Returns the time from which a broker does not answer, and the reason; None if none is known.

        ``purposes`` are the connections to check. Requests of :data:`WAITING_APIS` do not count.
        """
        now = time.monotonic()
        failing = self._broker_failures.reason(node_id)
        if failing is not None:
            return failing
        for since, made in self._attempts.slow_attempts(SLOW_S):
            if made.node_id == node_id:
                return since, slow_open_text(made)
        for purpose in purposes:
            found = self._connections.get((node_id, purpose))
            oldest = found.oldest_unanswered() if found is not None and not found.closed else None
            if oldest is not None and oldest.api_key not in WAITING_APIS and now - oldest.sent_s > SLOW_S:
                return oldest.sent_s, no_response_text(oldest.connection, oldest.api_key)
        return None

    def waits(self) -> list[Wait]:
        """Returns the reason why requests to any broker wait: see :mod:`tidemill.client.wait_reasons`."""
        now = time.monotonic()
        waiting = self.coordinator_warnings.current
        if waiting is not None:
            return [waiting]
        found = [outage for outage in (self._outage, self.retrying) if outage is not None]
        found += self._broker_failures.repeated(SLOW_S)
        found += [(since, slow_open_text(made)) for since, made in self._attempts.slow_attempts(SLOW_S)]
        for connection in self._control_connections():
            oldest = None if connection.closed else connection.oldest_unanswered()
            if oldest is not None and now - oldest.sent_s > SLOW_S:
                found.append((oldest.sent_s, no_response_text(connection, oldest.api_key)))
        return [Wait(Kind.CLUSTER, "", reason, since) for since, reason in sorted(found)[:1]]

    def close(self) -> None:
        """Closes every connection."""
        self.closed = True
        wait_reasons.unregister(self)
        self._attempts.close()
        with self._lock:
            found = list(self._connections.values())
            self._connections.clear()
            if self._bootstrap is not None:
                found.append(self._bootstrap)
        for connection in found:
            connection.close()


def _is_late(connection: Connection) -> bool:
    oldest = connection.oldest_unanswered()
    return oldest is not None and time.monotonic() - oldest.sent_s > LATE_S
