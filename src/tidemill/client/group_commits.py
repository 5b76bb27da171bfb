"""A member's commits, which the coordinator refuses once the group went on without it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from tidemill.client.connection import Connection
from tidemill.client.errors import ClientError, CommitFailed, RequestTimeout
from tidemill.client.group_offsets import COORDINATOR_MOVED, NAMED_MAX, Offsets, check_commit, commit_request
from tidemill.client.request import Request
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import ApiKey

MEMBERSHIP_LOST = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})
"""The group went on without this member: it joins as a new one, and its partitions are lost."""


class Member(Protocol):
    """What a commit needs to know of the membership, and what it tells it."""

    group_id: str
    instance_id: str | None
    member_id: str
    generation: int
    is_subscribed: bool
    """Whether it commits as a member only, and not from outside, for partitions assigned by hand."""

    def connection(self, deadline: float) -> Connection:
        """A connection to the coordinator."""
        ...

    def coordinator_answered(self) -> None:
        """The coordinator has taken a commit."""
        ...

    def forget_coordinator(self, problem: ClientError) -> None:
        """Has the coordinator looked up again."""
        ...

    def lost(self) -> None:
        """The group went on without this member."""
        ...

    def request_rejoin(self, reason: str) -> None:
        """A new round is under way."""
        ...


class Commits:
    """The commits of one member. For the polling thread."""

    def __init__(self, member: Member, backoff_seconds: float) -> None:
        self._member = member
        self._backoff = backoff_seconds
        self._under_way: list[tuple[Request, int, Callable[[ClientError | None], None]]] = []
        """With the generation that each was sent in."""

    def now(self, offsets: Offsets, deadline: float) -> None:
        """Commits and waits. CommitFailed when the group went on without this member."""
        while True:
            try:
                request, generation = self._send(offsets, deadline)
                request.connection.wait(request, max(0.0, deadline - time.monotonic()))
                if not request.done:
                    raise RequestTimeout(
                        f"the commit of group {self._member.group_id!r} was not answered in time"
                    )
                self._check(request, generation)
                return
            except ClientError as problem:
                moved = problem.code in COORDINATOR_MOVED
                if moved and problem.code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    self._member.forget_coordinator(problem)
                if not moved or time.monotonic() + self._backoff >= deadline:
                    raise
                time.sleep(self._backoff)

    def soon(self, offsets: Offsets, deadline: float, done: Callable[[ClientError | None], None]) -> None:
        """Commits without waiting; ``done(error or None)`` is called in :meth:`finish`."""
        self._under_way.append((*self._send(offsets, deadline), done))

    def _send(self, offsets: Offsets, deadline: float) -> tuple[Request, int]:
        """The request, and the generation that it was sent in."""
        generation = self._member.generation
        if generation < 0 and self._member.is_subscribed:
            # The coordinator would take it, as one from outside, once all members have left.
            raise CommitFailed(
                f"group {self._member.group_id!r} went on without this member, or has not taken it in yet; "
                "the offsets were not committed: another member may have the partitions now"
            )
        connection = self._member.connection(deadline)
        version = connection.version(ApiKey.OFFSET_COMMIT, NAMED_MAX)
        message = commit_request(
            self._member.group_id,
            offsets,
            self._member.member_id,
            generation,
            self._member.instance_id,
            version,
        )
        return connection.send(ApiKey.OFFSET_COMMIT, message, version=version), generation

    def _check(self, request: Request, generation: int) -> None:
        # Of an earlier generation it says nothing about the membership as it is now.
        is_current = generation == self._member.generation
        try:
            check_commit(request.response(), self._member.group_id, request.connection.address)
            self._member.coordinator_answered()
        except ClientError as problem:
            if problem.code in MEMBERSHIP_LOST:
                if is_current:
                    self._member.lost()
            elif problem.code == ErrorCode.REBALANCE_IN_PROGRESS:
                if is_current:
                    self._member.request_rejoin("a commit met a rebalance")
            elif problem.code != ErrorCode.FENCED_INSTANCE_ID:
                raise
            raise CommitFailed(
                f"{problem}; the offsets were not committed: another member may have the partitions now",
                problem.code,
                topic=problem.topic,
                partition=problem.partition,
            ) from problem

    def finish(self, wait_seconds: float = 0.0) -> None:
        """Takes the answers of :meth:`soon` in order, and calls back."""
        deadline = time.monotonic() + wait_seconds
        while self._under_way:
            request, generation, done = self._under_way[0]
            if not request.connection.wait(request, max(0.0, deadline - time.monotonic())):
                return
            self._under_way.pop(0)
            error: ClientError | None = None
            try:
                self._check(request, generation)
            except ClientError as problem:
                error = problem
                if problem.code in COORDINATOR_MOVED:
                    self._member.forget_coordinator(problem)
            done(error)
