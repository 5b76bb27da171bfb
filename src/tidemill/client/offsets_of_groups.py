"""The committed offsets of many groups, with as few requests as the protocol allows.

FindCoordinator has many groups from version 4 on (KIP-699), and OffsetFetch from version 8 on (KIP-709);
OffsetCommit has one group. Requests of one group are in flight together.

Nothing is sent again: a group whose coordinator does not answer is a failure, and the others go on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from tidemill.client.connection import Connection, InFlightRequest
from tidemill.client.errors import ClientClosed, ClientError, RequestTimeout, error_for
from tidemill.client.group_commits import Offsets, check_commit, commit_request
from tidemill.client.group_offsets import NAMED_MAX, OffsetAndMetadata, read_offsets
from tidemill.client.network_client import COORDINATOR_TYPES, GROUP, NetworkClient
from tidemill.model.errors import ErrorCode
from tidemill.model.types import TopicPartition, by_topic
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidemill.wire.messages.offset_commit import OffsetCommitResponse
from tidemill.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)

GROUPS_MAX: Final = 200
"""Groups of a request."""
IN_FLIGHT_MAX: Final = 50
"""Requests to a broker that are in flight together."""
MANY_COORDINATORS: Final = 4
MANY_GROUPS: Final = 8
"""The first versions of FindCoordinator and OffsetFetch with several groups."""

Wanted = Mapping[str, Iterable[TopicPartition] | None]
"""The partitions by group; None: all that the group has."""


class OffsetsOfGroups(NamedTuple):
    """The committed offsets by group, and the errors of the other groups."""

    offsets: dict[str, dict[TopicPartition, OffsetAndMetadata]]
    failures: dict[str, ClientError]


def fetch_offsets_of_groups(
    network_client: NetworkClient, wanted: Wanted, deadline: float
) -> OffsetsOfGroups:
    """Returns the committed offsets of each group; omits partitions without one. Raises ClientClosed."""
    result = OffsetsOfGroups({}, {})

    def send(connection: Connection, groups: Sequence[str]) -> InFlightRequest:
        version = connection.version(ApiKey.OFFSET_FETCH, NAMED_MAX)
        message = _fetch_request({group: wanted[group] for group in groups}, version)
        return connection.send(ApiKey.OFFSET_FETCH, message, version=version)

    def read(request: InFlightRequest, groups: Sequence[str]) -> None:
        response = request.response(OffsetFetchResponse)
        found = (
            {one.group_id: one for one in response.groups}
            if request.version >= MANY_GROUPS
            else {groups[0]: response}
        )
        for group in groups:
            try:
                results = [found[group]] if group in found else []
                one = request.connection.only_result(ApiKey.OFFSET_FETCH, results)
                result.offsets[group] = read_offsets(one, group, request.connection.address)
            except ClientError as problem:
                result.failures[group] = problem

    led = _coordinators(network_client, list(wanted), deadline, result.failures)
    for node_id, groups in led.items():
        with _noted(groups, result.failures):
            connection = network_client.connection(node_id, GROUP, deadline)
            version = connection.version(ApiKey.OFFSET_FETCH, NAMED_MAX)
            shares = _shares(groups, GROUPS_MAX if version >= MANY_GROUPS else 1)
            _call(connection, shares, send, read, deadline, result.failures)
    return result


def commit_offsets_of_groups(
    network_client: NetworkClient, commits: Mapping[str, Offsets], deadline: float
) -> dict[str, ClientError]:
    """Commits for groups without members; returns the errors of those that have failed. Raises ClientClosed.

    NON_EMPTY_GROUP: the group has members.
    """
    failures: dict[str, ClientError] = {}

    def send(connection: Connection, groups: Sequence[str]) -> InFlightRequest:
        (group,) = groups
        version = connection.version(ApiKey.OFFSET_COMMIT, NAMED_MAX)
        message = commit_request(group, commits[group], "", -1, None, version)
        return connection.send(ApiKey.OFFSET_COMMIT, message, version=version)

    def read(request: InFlightRequest, groups: Sequence[str]) -> None:
        (group,) = groups
        address = request.connection.address
        try:
            check_commit(request.response(OffsetCommitResponse), group, address)
        except ClientError as problem:
            if problem.code == ErrorCode.UNKNOWN_MEMBER_ID:
                what = f"set offsets of group {group!r}"
                problem = error_for(ErrorCode.NON_EMPTY_GROUP, what, broker=address)
            failures[group] = problem

    for node_id, groups in _coordinators(network_client, list(commits), deadline, failures).items():
        with _noted(groups, failures):
            connection = network_client.connection(node_id, GROUP, deadline)
            _call(connection, _shares(groups, 1), send, read, deadline, failures)
    return failures


def _coordinators(
    network_client: NetworkClient, groups: Sequence[str], deadline: float, failures: dict[str, ClientError]
) -> dict[int, list[str]]:
    """Returns the groups by the id of their coordinator."""
    led: dict[int, list[str]] = {}
    if not groups:
        return led

    def send(connection: Connection, some: Sequence[str]) -> InFlightRequest:
        version = connection.version(ApiKey.FIND_COORDINATOR)
        request = FindCoordinatorRequest(key_type=COORDINATOR_TYPES[GROUP])
        if version >= MANY_COORDINATORS:
            request.coordinator_keys = list(some)
        else:
            (request.key,) = some
        return connection.send(ApiKey.FIND_COORDINATOR, request, version=version)

    def read(request: InFlightRequest, some: Sequence[str]) -> None:
        response = request.response(FindCoordinatorResponse)
        found = (
            {one.key: one for one in response.coordinators}
            if request.version >= MANY_COORDINATORS
            else {some[0]: response}
        )
        for group in some:
            one = found.get(group)
            if one is None or one.error_code:
                failures[group] = error_for(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE if one is None else one.error_code,
                    f"find the coordinator of group {group!r}",
                    broker=request.connection.address,
                )
            else:
                led.setdefault(one.node_id, []).append(group)

    with _noted(groups, failures):
        network_client.refresh(deadline)
        connection = network_client.any_connection(deadline)
        version = connection.version(ApiKey.FIND_COORDINATOR)
        shares = _shares(groups, GROUPS_MAX if version >= MANY_COORDINATORS else 1)
        _call(connection, shares, send, read, deadline, failures)
    return led


@contextmanager
def _noted(groups: Sequence[str], failures: dict[str, ClientError]) -> Iterator[None]:
    """Notes an error as that of all groups that have none yet."""
    try:
        yield
    except ClientClosed:
        raise
    except ClientError as problem:
        for group in groups:
            failures.setdefault(group, problem)


def _call(
    connection: Connection,
    shares: Iterable[Sequence[str]],
    send: Callable[[Connection, Sequence[str]], InFlightRequest],
    read: Callable[[InFlightRequest, Sequence[str]], None],
    deadline: float,
    failures: dict[str, ClientError],
) -> None:
    """Sends a request for each share of the groups, and reads the responses. After an error of the connection
    all further groups have it.
    """
    in_flight: deque[tuple[InFlightRequest, Sequence[str]]] = deque()
    broken: ClientError | None = None

    def wait_for_first() -> ClientError | None:
        request, groups = in_flight.popleft()
        try:
            request.connection.wait(request, max(0.0, deadline - time.monotonic()))
            if not request.done:
                raise RequestTimeout(
                    f"broker {connection.address} has not answered {request.wait_text}",
                    broker=connection.address,
                )
            read(request, groups)
        except ClientClosed:
            raise
        except ClientError as problem:
            failures.update(dict.fromkeys(groups, problem))
            return problem
        return None

    for groups in shares:
        if broken is None:
            try:
                in_flight.append((send(connection, groups), groups))
            except ClientClosed:
                raise
            except ClientError as problem:
                broken = problem
        if broken is not None:
            failures.update(dict.fromkeys(groups, broken))
        elif len(in_flight) >= IN_FLIGHT_MAX:
            broken = wait_for_first()
    while in_flight:
        wait_for_first()


def _shares(groups: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for first in range(0, len(groups), size):
        yield groups[first : first + size]


def _fetch_request(wanted: Wanted, version: int) -> OffsetFetchRequest:
    topics = {group: _topics(items) for group, items in wanted.items()}
    if version >= MANY_GROUPS:
        groups = [OffsetFetchRequestGroup(group_id=group, topics=some) for group, some in topics.items()]
        return OffsetFetchRequest(groups=groups)
    ((group, some),) = topics.items()
    return OffsetFetchRequest(group_id=group, topics=some)


def _topics(items: Iterable[TopicPartition] | None) -> list[OffsetFetchRequestTopic] | None:
    if items is None:
        return None
    return [
        OffsetFetchRequestTopic(name=topic, partition_indexes=numbers)
        for topic, numbers in by_topic(items).items()
    ]
