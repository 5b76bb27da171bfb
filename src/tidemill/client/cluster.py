"""What the client knows of the cluster: brokers, topics, leaders; and the connections to them.

Connections are kept apart by purpose, because a broker answers one connection's requests in order: a commit
must not wait behind a long poll.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from tidemill.client import waits
from tidemill.client.authentication import Security
from tidemill.client.cluster_image import Node, Topic, topic_image
from tidemill.client.config import ClientConfig
from tidemill.client.connection import Connection
from tidemill.client.connection_attempts import Failures, Opener, Openings, no_answer, slow_open
from tidemill.client.coordinator_trouble import CoordinatorTrouble
from tidemill.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    NoAnswerYet,
    RequestTimeout,
    code_of,
    error_for,
)
from tidemill.client.waits import Kind, Wait
from tidemill.model.configs.listeners import join_address
from tidemill.model.errors import ErrorCode, TidemillError
from tidemill.model.types import ZERO_ID
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest
from tidemill.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

LOG = logging.getLogger(__name__)

DATA, CONTROL, GROUP = "data", "control", "group"
"""Purposes of connections: records, questions, the group's coordinator."""

LATE_S = 5.0
"""A connection with a request without an answer for so long is passed over, where there is another broker."""

METADATA_S = 10.0
"""How long a broker may take at least to answer a question for metadata, or for a coordinator."""

SLOW_S = 1.0
"""What takes no longer than this is no reason to say that a client waits."""

WAITING_APIS = frozenset({ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""APIs whose responses may be delayed by the broker; their senders set the timeout."""


class Cluster:
    """Metadata and connections, shared by the threads of one client."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, Topic] = {}
        self.names: dict[bytes, str] = {}
        self.errors: dict[str, int] = {}
        self.controller_id = -1
        self.cluster_id: str | None = None
        self.version = 0
        self.closed = False
        self.every = False
        """Whether each refresh reads all topics, for subscriptions by pattern."""
        self.create = False
        """Whether a topic that is asked for and not there may be created."""
        self._refreshing = False
        self._wanted: set[str] = set()
        self._refreshed = 0.0
        self._stale = True
        self._security = Security(config)
        self._refusal: ClientError | None = None
        self._lock = threading.RLock()
        self._trouble: tuple[float, str] | None = None
        """Since when no broker has answered a question for metadata or of a command, and why."""
        self.retrying: tuple[float, str] | None = None
        """Since when a call repeats a question to brokers that cannot answer it yet, and why."""
        self._refresh_lock = threading.Lock()
        self._connections: dict[tuple[int, str], Connection] = {}
        self._bootstrap: Connection | None = None
        self.coordinator_trouble = CoordinatorTrouble()
        self._opening: set[tuple[int, str]] = set()
        self._random = random.Random()
        self._openings = Openings()
        self._failures = Failures(config, self._random)
        waits.register(self)

    # -- connections --------------------------------------------------------------------------------------

    def connection(self, node_id: int, purpose: str, deadline: float) -> Connection:
        """An open connection to a broker, opened if need be; waits out the pause after a failure.

        BrokerUnreachable when it cannot be opened, or the pause ends after ``deadline`` (monotonic).
        """
        while True:
            found = self.opened(node_id, purpose)
            if found is not None:
                return found
            pause = self.pause(node_id)
            if pause <= 0:
                return self._open(node_id, purpose)
            if time.monotonic() + pause > deadline:
                node = self.nodes.get(node_id)
                raise BrokerUnreachable(
                    f"broker {node.address if node else node_id} failed a moment ago, and is not tried again "
                    "within the time given; is it running?",
                    broker=node.address if node else None,
                )
            time.sleep(pause)

    def opened(self, node_id: int, purpose: str) -> Connection | None:
        """The open connection to a broker, if there is one; one that was idle too long is closed instead."""
        found = self._connections.get((node_id, purpose))
        if found is None or found.closed:
            return None
        idle = self.config.int("connections.max.idle.ms")
        now = time.monotonic()
        if found.in_flight == 0 and (0 <= idle / 1000 < now - found.used or found.session_over(now)):
            found.close()
            return None
        return found

    def open_soon(self, node_id: int, purpose: str, done: Callable[[], None]) -> None:
        """Opens a connection in a thread of its own and calls ``done`` then; a no-op while one is opening.

        For threads that serve several brokers and must not wait for one.
        """
        key = (node_id, purpose)
        with self._lock:
            if key in self._opening or self.pause(node_id) > 0 or self.closed:
                return
            self._opening.add(key)

        def run() -> None:
            try:
                self._open(node_id, purpose)
            except TidemillError as problem:
                self._note_refusal(problem)
                self.request_refresh()
            finally:
                with self._lock:
                    self._opening.discard(key)
                done()

        threading.Thread(target=run, name=f"tidemill-connect-{node_id}", daemon=True).start()

    def _note_refusal(self, problem: TidemillError) -> None:
        """Keeps what a helper thread met and waiting does not mend, for who calls the client."""
        if isinstance(problem, AuthenticationFailed):
            self._refusal = problem
        elif not isinstance(problem, ClientError):
            self._refusal = AuthenticationFailed(str(problem))

    def raise_refusal(self) -> None:
        """Raises, once, the AuthenticationFailed that a helper thread met."""
        refusal, self._refusal = self._refusal, None
        if refusal is not None:
            raise refusal

    def pause(self, node_id: int) -> float:
        """Seconds until a broker that failed may be tried again; 0 when now."""
        return self._failures.pause(node_id)

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
            self._openings.open(made)
        except TidemillError as problem:
            self.failed(node_id, problem)
            raise
        with self._lock:
            self._failures.ended(node_id)
            other = self.opened(node_id, purpose)
            if other is not None:
                made.close()
                return other
            self._connections[node_id, purpose] = made
        self._check_open(made)
        return made

    def _check_open(self, made: Connection | None) -> None:
        """Closes what was opened while another thread closed the client, and raises."""
        if self.closed:
            if made is not None:
                made.close()
            raise ClientClosed("the client is closed", ErrorCode.NETWORK_EXCEPTION)

    def failed(self, node_id: int, problem: TidemillError | None = None) -> None:
        """Notes a failure: the broker is left alone for a growing pause."""
        self._failures.failed(node_id, problem)

    def any_connection(self, deadline: float) -> Connection:
        """A connection to some broker: one that is open, a known one, or one of ``bootstrap.servers``.

        A broker that does not answer holds up nobody: others are tried beside it. BrokerUnreachable at the
        ``deadline`` (monotonic); AuthenticationFailed where no broker takes the login.
        """
        for (_, purpose), found in list(self._connections.items()):
            if purpose == CONTROL and not found.closed and not _is_late(found):
                return found
        if self._bootstrap is not None and not self._bootstrap.closed and not _is_late(self._bootstrap):
            return self._bootstrap
        attempt = 0
        told: BrokerUnreachable | None = None
        while True:
            try:
                found = self._openings.first(self._openers(), deadline)
                if told is not None:
                    self._trouble = None  # The next question has its own.
                return found
            except BrokerUnreachable as problem:
                if isinstance(problem, NoAnswerYet) and told is not None:
                    raise told from None  # It says more than that the last attempt had no time.
                told = problem
                attempt += 1
                pause = min(self.config.seconds("reconnect.backoff.ms") * 2**attempt, 1.0)
                if self.closed or time.monotonic() + pause >= deadline:
                    raise
                self._in_trouble(problem)
            time.sleep(pause)

    def _openers(self) -> list[Opener]:
        """The brokers that may be tried now, in the order in which they are."""
        nodes = [node for node in self.nodes.values() if self.pause(node.node_id) <= 0]
        servers = list(self.config["bootstrap.servers"])
        self._random.shuffle(nodes)
        self._random.shuffle(servers)
        found = [Opener(one.node_id, one.address, partial(self._open, one.node_id, CONTROL)) for one in nodes]
        known = {one.address for one in nodes}
        for host, port in servers:
            address = join_address(host, port)
            if address not in known:
                found.append(Opener(address, address, partial(self._open_server, host, port)))
        return found

    def _open_server(self, host: str, port: int) -> Connection:
        made = Connection(host, port, self.config, security=self._security)
        self._openings.open(made)
        return self._keep_bootstrap(made)

    def _keep_bootstrap(self, made: Connection) -> Connection:
        """Keeps the first of the connections that several threads may have opened at once."""
        with self._lock:
            other = self._bootstrap
            if other is not None and not other.closed:
                made.close()
                return other
            self._bootstrap = made
        self._check_open(made)
        return made

    # -- metadata -----------------------------------------------------------------------------------------

    def request_refresh(self) -> None:
        """Has the metadata read again before it is next relied on."""
        self._stale = True

    def needs_refresh(self) -> bool:
        """Whether the metadata is stale or too old."""
        return self._stale or time.monotonic() - self._refreshed > self.config.seconds("metadata.max.age.ms")

    def refresh(
        self,
        deadline: float,
        topics: Iterable[str] | None = None,
        *,
        every: bool = False,
        create: bool | None = None,
    ) -> None:
        """Reads the metadata: of ``topics`` besides those known to be wanted, or of ``every`` topic.

        Errors of topics are kept in ``errors``; errors of the request are raised.
        """
        with self._refresh_lock:
            self._stale = False
            try:
                self._refresh(
                    deadline, topics, every or self.every, self.create if create is None else create
                )
            except BaseException:
                self._stale = True
                raise

    def refresh_soon(self, done: Callable[[], None]) -> None:
        """Reads the metadata in a thread of its own and calls ``done`` then; a no-op while one is reading."""
        with self._lock:
            if self._refreshing or self.closed:
                return
            self._refreshing = True

        def run() -> None:
            try:
                self.refresh(time.monotonic() + 5)
            except TidemillError as problem:
                self._note_refusal(problem)
                LOG.debug("metadata: %s", problem)
                time.sleep(self.config.seconds("retry.backoff.ms"))
            finally:
                self._refreshing = False
                done()

        threading.Thread(target=run, name="tidemill-metadata", daemon=True).start()

    def _refresh(self, deadline: float, topics: Iterable[str] | None, every: bool, create: bool) -> None:
        if topics is not None:
            self._wanted.update(topics)
        failure: ClientError | None = None
        while True:
            try:
                connection = self.any_connection(deadline)
                version = connection.version(ApiKey.METADATA)
                asked = None if every else [MetadataRequestTopic(name=name) for name in sorted(self._wanted)]
                if not every and version == 0 and not asked:
                    asked = [MetadataRequestTopic(name="")]  # an empty list means every topic in version 0
                if every and version == 0:
                    asked = []
                request = MetadataRequest(topics=asked, allow_auto_topic_creation=create or version < 4)
                answer = connection.call(
                    ApiKey.METADATA, request, version=version, timeout=self.answer_s(deadline)
                )
                if answer.error_code:
                    raise error_for(answer.error_code, "read metadata", broker=connection.address)
                self._take(answer, every)
                self._trouble = None
                return
            except (BrokerUnreachable, RequestTimeout) as problem:
                if failure is None or not isinstance(problem, NoAnswerYet):
                    failure = problem  # Else the one before says more.
                self._in_trouble(failure)
            if time.monotonic() >= deadline or self.closed:
                raise failure
            time.sleep(self.config.seconds("retry.backoff.ms"))

    def answer_s(self, deadline: float) -> float:
        """How long a broker may take to answer a question that another one can answer, too; seconds."""
        left_s = deadline - time.monotonic()
        return min(self.config.seconds("request.timeout.ms"), max(METADATA_S, left_s))

    def _take(self, answer: Any, every: bool) -> None:
        with self._lock:
            self.nodes = {b.node_id: Node(b.node_id, b.host, b.port, b.rack) for b in answer.brokers}
            self.controller_id = answer.controller_id
            self.cluster_id = answer.cluster_id
            found: dict[str, Topic] = {}
            for item in answer.topics:
                if item.name is None:
                    continue
                if item.error_code:
                    self.errors[item.name] = item.error_code
                    if code_of(item.error_code) != ErrorCode.LEADER_NOT_AVAILABLE:
                        self.topics.pop(item.name, None)
                    continue
                self.errors.pop(item.name, None)
                found[item.name] = topic_image(item, self.topics.get(item.name))
            if every:
                self.topics = found
            else:
                self.topics.update(found)
            self.names = {t.topic_id: t.name for t in self.topics.values() if t.topic_id != ZERO_ID}
            self._refreshed = time.monotonic()
            self.version += 1

    def want(self, topics: Iterable[str]) -> None:
        """Has the next refresh read ``topics`` too."""
        self._wanted.update(topics)
        self._stale = True

    def forget(self, topic: str) -> None:
        """No longer reads the metadata of ``topic``."""
        self._wanted.discard(topic)
        self.topics.pop(topic, None)

    def topic(self, name: str, deadline: float, *, create: bool = False) -> Topic:
        """A topic's metadata, read if it is not known yet; waits for a topic that is being created."""
        failure: ClientError | None = None
        while True:
            found = self.topics.get(name)
            if found is not None and found.partitions:
                return found
            self.refresh(deadline, [name], create=create)
            found = self.topics.get(name)
            if found is not None and found.partitions:
                return found
            code = self.errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            failure = error_for(code, f"use topic {name!r}", topic=name)
            if not failure.retriable or (code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and not create):
                self._wanted.discard(name)
                raise failure
            pause = self.config.seconds("retry.backoff.ms")
            if time.monotonic() + pause >= deadline:
                raise failure
            time.sleep(pause)

    def leader(self, topic: str, partition: int) -> int:
        """The node id of a partition's leader; -1 when none is known."""
        found = self.topics.get(topic)
        if found is None or partition >= len(found.partitions):
            return -1
        return found.partitions[partition].leader

    # -- calls --------------------------------------------------------------------------------------------

    def call(self, node_id: int, key: ApiKey, message: Any, deadline: float, **options: Any) -> Any:
        """Asks one broker, once, over its connection for questions."""
        return self.connection(node_id, CONTROL, deadline).call(key, message, **options)

    def call_any(self, key: ApiKey, message: Any, deadline: float, **options: Any) -> Any:
        """Asks some broker; others are tried while brokers fail and there is time."""
        while True:
            try:
                answer = self.any_connection(deadline).call(key, message, **options)
                self._trouble = None
                return answer
            except (BrokerUnreachable, RequestTimeout) as problem:
                self._in_trouble(problem)
                if time.monotonic() + self.config.seconds("retry.backoff.ms") >= deadline:
                    raise
                time.sleep(self.config.seconds("retry.backoff.ms"))

    def coordinator(self, key: str, deadline: float, key_type: int = 0) -> int:
        """The node id of a group's coordinator (``key_type`` 1: of a transactional id's)."""
        what = "group" if key_type == 0 else "transactional id"
        while True:
            connection = self.any_connection(deadline)
            version = connection.version(ApiKey.FIND_COORDINATOR)
            request = FindCoordinatorRequest(key_type=key_type if version >= 1 else 0)
            if version >= 4:
                request.coordinator_keys = [key]
            else:
                request.key = key
            try:
                answer = connection.call(
                    ApiKey.FIND_COORDINATOR, request, version=version, timeout=self.answer_s(deadline)
                )
                found = answer.coordinators[0] if version >= 4 else answer
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
                    f"find the coordinator of {what} {key!r}",
                    detail=found.error_message,
                    broker=connection.address,
                )
            except (BrokerUnreachable, RequestTimeout) as problem:
                failure = problem
            if not failure.retriable or time.monotonic() + 0.1 >= deadline:
                raise failure
            if key_type == 0:
                self.coordinator_trouble.failed(key, failure)
            time.sleep(self.config.seconds("retry.backoff.ms"))

    # -- what is waited for -------------------------------------------------------------------------------

    def _in_trouble(self, problem: ClientError) -> None:
        self._trouble = (self._trouble[0] if self._trouble else time.monotonic(), str(problem))

    def blocked(self, node_id: int, *purposes: str) -> tuple[float, str] | None:
        """Since when a broker does not answer, and why; None when nothing is known against it.

        ``purposes``: the connections that matter. Requests of :data:`WAITING_APIS` do not count.
        """
        now = time.monotonic()
        failing = self._failures.reason(node_id)
        if failing is not None:
            return failing
        for since, made in self._openings.slow(SLOW_S):
            if made.node_id == node_id:
                return since, slow_open(made)
        for purpose in purposes:
            found = self._connections.get((node_id, purpose))
            oldest = found.unanswered() if found is not None and not found.closed else None
            if oldest is not None and oldest.api_key not in WAITING_APIS and now - oldest.sent > SLOW_S:
                return oldest.sent, no_answer(oldest.connection, oldest.api_key)
        return None

    def waits(self) -> list[Wait]:
        """What questions to any broker wait for: see :mod:`tidemill.client.waits`."""
        now = time.monotonic()
        group = self.coordinator_trouble.current
        if group is not None:
            return [Wait(Kind.GROUP, *group)]
        found = [trouble for trouble in (self._trouble, self.retrying) if trouble is not None]
        found += self._failures.repeated(SLOW_S)
        found += [(since, slow_open(made)) for since, made in self._openings.slow(SLOW_S)]
        open_ones = [one for (_, purpose), one in list(self._connections.items()) if purpose == CONTROL]
        for one in [*open_ones, *([self._bootstrap] if self._bootstrap is not None else [])]:
            oldest = None if one.closed else one.unanswered()
            if oldest is not None and now - oldest.sent > SLOW_S:
                found.append((oldest.sent, no_answer(one, oldest.api_key)))
        return [Wait(Kind.CLUSTER, "", reason, since) for since, reason in sorted(found)[:1]]

    def close(self) -> None:
        """Closes every connection."""
        self.closed = True
        waits.unregister(self)
        self._openings.close()
        with self._lock:
            found = list(self._connections.values())
            self._connections.clear()
            if self._bootstrap is not None:
                found.append(self._bootstrap)
        for connection in found:
            connection.close()


def _is_late(connection: Connection) -> bool:
    oldest = connection.unanswered()
    return oldest is not None and time.monotonic() - oldest.sent > LATE_S
