"""OffsetCommit: the commits of a member, also the automatic ones, and those for a group without members.

The coordinator refuses the commits of a member after a rebalance without the member.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from tidemill.client.connection import Connection, InFlightRequest
from tidemill.client.errors import ClientError, CommitFailed, RequestTimeout, check
from tidemill.client.group_offsets import NAMED_MAX, OffsetAndMetadata
from tidemill.client.group_requests import COORDINATOR_MOVED, MEMBERSHIP_LOST, call_coordinator
from tidemill.client.network_client import NetworkClient
from tidemill.client.subscription_state import SubscriptionState
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.model.types import TopicPartition, by_topic
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)

logger = logging.getLogger(__name__)

OFFSET_MAX = (1 << 63) - 1
Offsets = Mapping[TopicPartition, tuple[int, int, str]]
"""Offset, leader epoch (-1 unknown), metadata by partition."""


def offsets_to_commit(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Returns the offsets with leader epoch and metadata; a plain number has none of both.

    Raises TypeError unless it is a mapping, ConfigError for an offset that is no number from 0 on.
    """
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets={offsets!r}: it must be a mapping of TopicPartition to offset")
    found = {}
    for item, at in offsets.items():
        place: object = OffsetAndMetadata(at) if isinstance(at, int) else at
        if not isinstance(place, OffsetAndMetadata) or not 0 <= place.offset <= OFFSET_MAX:
            raise ConfigError(f"the offset of {TopicPartition(*item)} is {at!r}: it must be 0 or more")
        found[TopicPartition(*item)] = place
    return found


class Membership(Protocol):
    """The membership, as its commits use it."""

    group_id: str
    instance_id: str | None
    member_id: str
    generation: int

    def connection(self, deadline: float) -> Connection:
        """Returns a connection to the coordinator."""
        ...

    def mark_coordinator_unknown(self, problem: ClientError) -> None:
        """Makes the next request look up the coordinator again."""
        ...

    def membership_lost(self) -> None:
        """Resets the membership: the group rebalanced without this member."""
        ...

    def request_rejoin(self, reason: str) -> None:
        """Rejoins the group: a rebalance is in progress."""
        ...


class GroupCommits:
    """The commits of one member. For the polling thread."""

    def __init__(
        self, member: Membership, subscriptions: SubscriptionState, network_client: NetworkClient
    ) -> None:
        config = network_client.config
        self._membership = member
        self._subscriptions = subscriptions
        self._network_client = network_client
        self._is_auto_commit_enabled = config.bool("enable.auto.commit")
        self._auto_commit_interval_s = config.seconds("auto.commit.interval.ms")
        self.restart_auto_commit_interval()
        self._in_flight: list[tuple[InFlightRequest, int, Callable[[ClientError | None], None]]] = []
        """The commits in flight, each with the generation that it was sent in and its callback."""

    def commit(self, offsets: Offsets, deadline: float) -> None:
        """Commits and waits. Raises CommitFailed if the group rebalanced without this member."""
        while True:
            try:
                request, generation = self.send(offsets, deadline)
                request.connection.wait(request, max(0.0, deadline - time.monotonic()))
                if not request.done:
                    raise RequestTimeout(
                        f"the commit of group {self._membership.group_id!r} was not answered "
                        f"{request.wait_text}"
                    )
                self.check(request, generation)
                return
            except ClientError as problem:
                if problem.code not in COORDINATOR_MOVED:
                    raise
                if problem.code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    self._membership.mark_coordinator_unknown(problem)
                self._network_client.back_off(problem, deadline)

    def commit_async(
        self, offsets: Offsets, deadline: float, done: Callable[[ClientError | None], None]
    ) -> None:
        """Commits without waiting; :meth:`handle_responses` calls ``done(error or None)``."""
        self._in_flight.append((*self.send(offsets, deadline), done))

    # -- auto-commit --------------------------------------------------------------------------------------

    def restart_auto_commit_interval(self) -> None:
        """Makes the next automatic commit due after ``auto.commit.interval.ms``."""
        self._next_auto_commit = time.monotonic() + self._auto_commit_interval_s

    def is_auto_commit_due(self) -> bool:
        """Whether the interval of auto-commit has passed."""
        return time.monotonic() >= self._next_auto_commit

    def auto_commit_offsets(self) -> Offsets:
        """Returns the positions that auto-commit commits now; none if it is disabled, or without a member."""
        is_refused = self._subscriptions.is_subscribed and self._membership.generation < 0
        return self._subscriptions.all_consumed() if self._is_auto_commit_enabled and not is_refused else {}

    def auto_commit(self, deadline: float) -> None:
        """Commits the positions and waits, if auto-commit is enabled. Logs an error."""
        if offsets := self.auto_commit_offsets():
            try:
                self.commit(offsets, deadline)
            except ClientError as problem:
                log_failed_commit(problem)

    # -- requests and responses ---------------------------------------------------------------------------

    def send(self, offsets: Offsets, deadline: float) -> tuple[InFlightRequest, int]:
        """Sends a commit; returns the request and the generation that it was sent in."""
        generation = self._membership.generation
        if generation < 0 and self._subscriptions.is_subscribed:
            # Once all members have left, the coordinator would accept it as a commit from outside the group.
            raise CommitFailed(
                f"group {self._membership.group_id!r} rebalanced without this member, or it has not joined "
                "yet; the offsets were not committed: another member may have the partitions now"
            )
        connection = self._membership.connection(deadline)
        version = connection.version(ApiKey.OFFSET_COMMIT, NAMED_MAX)
        message = commit_request(
            self._membership.group_id,
            offsets,
            self._membership.member_id,
            generation,
            self._membership.instance_id,
            version,
        )
        return connection.send(ApiKey.OFFSET_COMMIT, message, version=version), generation

    def check(self, request: InFlightRequest, generation: int) -> None:
        """Raises the error in the response to a commit of ``generation``; CommitFailed after a rebalance."""
        # The response to a commit of an earlier generation says nothing about the current membership.
        is_current = generation == self._membership.generation
        try:
            check_commit(
                request.response(OffsetCommitResponse),
                self._membership.group_id,
                request.connection.address,
            )
            self._network_client.coordinator_warnings.ended(self._membership.group_id)
        except ClientError as problem:
            if problem.code in MEMBERSHIP_LOST:
                if is_current:
                    self._membership.membership_lost()
            elif problem.code == ErrorCode.REBALANCE_IN_PROGRESS:
                if is_current:
                    self._membership.request_rejoin("a commit failed during a rebalance")
            elif problem.code != ErrorCode.FENCED_INSTANCE_ID:
                raise
            raise CommitFailed(
                f"{problem}; the offsets were not committed: another member may have the partitions now",
                problem.code,
                topic=problem.topic,
                partition=problem.partition,
            ) from problem

    def handle_responses(self, wait_seconds: float = 0.0) -> None:
        """Handles the responses to the commits of :meth:`commit_async`, in order, and calls the callbacks."""
        deadline = time.monotonic() + wait_seconds
        while self._in_flight:
            request, generation, done = self._in_flight[0]
            if not request.connection.wait(request, max(0.0, deadline - time.monotonic())):
                return
            self._in_flight.pop(0)
            error: ClientError | None = None
            try:
                self.check(request, generation)
            except ClientError as problem:
                error = problem
                if problem.code in COORDINATOR_MOVED:
                    self._membership.mark_coordinator_unknown(problem)
            done(error)


def commit_request(
    group: str, offsets: Offsets, member_id: str, generation: int, instance_id: str | None, version: int
) -> OffsetCommitRequest:
    """Builds the request; for a group without members, generation -1 and an empty member id."""
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance_id if version >= 7 else None,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=p,
                        committed_offset=offsets[TopicPartition(topic, p)][0],
                        committed_leader_epoch=offsets[TopicPartition(topic, p)][1],
                        committed_metadata=offsets[TopicPartition(topic, p)][2],
                    )
                    for p in partitions
                ],
            )
            for topic, partitions in by_topic(offsets).items()
        ],
    )


def check_commit(response: OffsetCommitResponse, group: str, broker: str) -> None:
    """Raises the first error in a response to OffsetCommit."""
    for topic in response.topics:
        for entry in topic.partitions:
            check(
                entry.error_code,
                f"commit {topic.name}-{entry.partition_index} for group {group!r}",
                broker=broker,
                topic=topic.name,
                partition=entry.partition_index,
            )


def commit_offsets(network_client: NetworkClient, group: str, offsets: Offsets, deadline: float) -> None:
    """Commits for a group without members, and waits for the acknowledgement."""
    if not offsets:
        return

    def send(connection: Connection) -> None:
        version = connection.version(ApiKey.OFFSET_COMMIT, NAMED_MAX)
        request = commit_request(group, offsets, "", -1, None, version)
        left_s = max(1.0, deadline - time.monotonic())
        timeout = min(left_s, network_client.config.seconds("request.timeout.ms"))
        response = connection.call(
            ApiKey.OFFSET_COMMIT, request, OffsetCommitResponse, version=version, timeout=timeout
        )
        check_commit(response, group, connection.address)

    call_coordinator(network_client, group, deadline, send)


def log_failed_commit(error: ClientError | None) -> None:
    """Logs the error of a commit that has no callback of the user."""
    if error is not None:
        level = logging.DEBUG if error.code in COORDINATOR_MOVED else logging.WARNING
        logger.log(level, "a commit failed: %s", error)
