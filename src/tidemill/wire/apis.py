"""The table of APIs: key, name, message classes, described versions, and header versions.

It contains every API of Kafka 3.9 and 4.3. Their message classes describe the versions from the oldest that
Kafka 3.9 serves to the newest of Kafka 4.3. The handlers of a broker declare which of them it serves and
announces; the APIs of share groups, streams groups and the Raft quorum are included so that a broker can
refuse them with their own responses.

Source: the message definitions of Kafka's clients; KIP-482 for the headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import cached_property
from importlib import import_module
from typing import Final, TypeVar

from tidemill.wire.schema import Struct, parse_versions

ResponseT = TypeVar("ResponseT", bound=Struct)


class ApiKey(IntEnum):
    """The number of an API in a request header, by Kafka's name."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


class ApiSpec:
    """The name of an API, and the properties of its message classes.

    The versions are declared by the message classes alone, so the first use of a property imports them. The
    names of the module and the classes follow from the key, for example ``offset_commit`` and
    ``OffsetCommitRequest`` from ``OFFSET_COMMIT``.
    """

    def __init__(self, key: ApiKey) -> None:
        self.key = key
        self.name = "".join([part.capitalize() for part in key.name.split("_")])

    @cached_property
    def request(self) -> type[Struct]:
        """The class of the request."""
        return self._message("Request")

    @cached_property
    def response(self) -> type[Struct]:
        """The class of the response."""
        return self._message("Response")

    @cached_property
    def version_min(self) -> int:
        """The first described version."""
        return parse_versions(self.request.versions_)[0]

    @cached_property
    def version_max(self) -> int:
        """The last described version."""
        return parse_versions(self.request.versions_)[1]

    @cached_property
    def flexible_from(self) -> int:
        """The first version with compact lengths and tagged fields; -1 without such a version."""
        flexible = self.request.flexible_
        return parse_versions(flexible)[0] if flexible else -1

    def is_flexible(self, version: int) -> bool:
        """Whether ``version`` has compact lengths and tagged fields."""
        return 0 <= self.flexible_from <= version

    def _message(self, kind: str) -> type[Struct]:
        module = import_module(f"tidemill.wire.messages.{self.key.name.lower()}")
        found: type[Struct] = getattr(module, self.name + kind)
        return found


API: Final[Mapping[int, ApiSpec]] = {int(key): ApiSpec(key) for key in ApiKey}
"""All APIs, by key."""


def request_class(key: int) -> type[Struct]:
    """Returns the class of an API's request, and imports its module on first use. KeyError: unknown key."""
    return API[key].request


def response_class(key: int) -> type[Struct]:
    """Returns the class of an API's response, and imports its module on first use. KeyError: unknown key."""
    return API[key].response


def expect_response(response: Struct, response_type: type[ResponseT]) -> ResponseT:
    """Returns a decoded response as the class that the sender of its request declares.

    Raises TypeError if the response belongs to another API.
    """
    if not isinstance(response, response_type):
        raise TypeError(f"the response is a {type(response).__name__}, not a {response_type.__name__}")
    return response


def request_header_version(key: int, version: int) -> int:
    """Returns 2 for flexible versions, else 1; 0 only for ControlledShutdown 0. KeyError: unknown key.

    It also accepts unknown versions: a broker reads the header before it can refuse them.
    """
    if key == ApiKey.CONTROLLED_SHUTDOWN and version == 0:
        return 0
    return 2 if API[key].is_flexible(version) else 1


def response_header_version(key: int, version: int) -> int:
    """Returns 1 for flexible versions, else 0; always 0 for ApiVersions. KeyError: unknown key.

    A client that requests a version of ApiVersions that the broker lacks must be able to read the response.
    """
    if key == ApiKey.API_VERSIONS:
        return 0
    return 1 if API[key].is_flexible(version) else 0
