"""APIs and versions that are known and not served: UNSUPPORTED_VERSION, in the response that is expected.

A client that asked for ApiVersions does not send them. One that did not ask would see its connection close,
and could not tell that from a broker that died.

A response without an error of its own repeats the items of the request, each with the error.

Source: the protocol; Apache Kafka, ``getErrorResponse`` of its requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidemill.broker.registry import APIS
from tidemill.broker.request_slices import Turns, in_slices
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import API, ApiKey, response_class
from tidemill.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from tidemill.wire.schema import Struct, parse_versions

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.context import RequestContext

ERROR, TEXT = "error_code", "error_message"

_TRANSACTIONS = "transactions come with a later version"
_SASL = "SASL comes with a later version"
_TOKENS = "delegation tokens come with a later version"
_QUORUM = "the cluster's metadata is in its coordination store, as with ZooKeeper: there is no Raft quorum"
_CONSUMER_PROTOCOL = "the consumer protocol of KIP-848 comes with a later version; use group.protocol=classic"
_METRICS = "clients are not asked for their metrics"
_SHARE = "share groups are not served"
_STREAMS = "streams groups are not served; use group.protocol=classic"

REASONS: Final[Mapping[int, str]] = {
    ApiKey.SASL_HANDSHAKE: _SASL,
    ApiKey.ADD_PARTITIONS_TO_TXN: _TRANSACTIONS,
    ApiKey.ADD_OFFSETS_TO_TXN: _TRANSACTIONS,
    ApiKey.END_TXN: _TRANSACTIONS,
    ApiKey.WRITE_TXN_MARKERS: _TRANSACTIONS,
    ApiKey.TXN_OFFSET_COMMIT: _TRANSACTIONS,
    ApiKey.SASL_AUTHENTICATE: _SASL,
    ApiKey.CREATE_DELEGATION_TOKEN: _TOKENS,
    ApiKey.RENEW_DELEGATION_TOKEN: _TOKENS,
    ApiKey.EXPIRE_DELEGATION_TOKEN: _TOKENS,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _TOKENS,
    ApiKey.ALTER_CLIENT_QUOTAS: "quotas come with a later version",
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "SCRAM comes with a later version",
    ApiKey.VOTE: _QUORUM,
    ApiKey.BEGIN_QUORUM_EPOCH: _QUORUM,
    ApiKey.END_QUORUM_EPOCH: _QUORUM,
    ApiKey.DESCRIBE_QUORUM: _QUORUM,
    ApiKey.FETCH_SNAPSHOT: _QUORUM,
    ApiKey.BROKER_REGISTRATION: _QUORUM,
    ApiKey.BROKER_HEARTBEAT: _QUORUM,
    ApiKey.DESCRIBE_TRANSACTIONS: _TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS: _TRANSACTIONS,
    ApiKey.ALLOCATE_PRODUCER_IDS: "brokers take producer ids from their coordination store",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _CONSUMER_PROTOCOL,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _CONSUMER_PROTOCOL,
    ApiKey.CONTROLLER_REGISTRATION: _QUORUM,
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: _METRICS,
    ApiKey.PUSH_TELEMETRY: _METRICS,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: _QUORUM,
    ApiKey.SHARE_GROUP_HEARTBEAT: _SHARE,
    ApiKey.SHARE_GROUP_DESCRIBE: _SHARE,
    ApiKey.SHARE_FETCH: _SHARE,
    ApiKey.SHARE_ACKNOWLEDGE: _SHARE,
    ApiKey.ADD_RAFT_VOTER: _QUORUM,
    ApiKey.REMOVE_RAFT_VOTER: _QUORUM,
    ApiKey.UPDATE_RAFT_VOTER: _QUORUM,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _SHARE,
    ApiKey.READ_SHARE_GROUP_STATE: _SHARE,
    ApiKey.WRITE_SHARE_GROUP_STATE: _SHARE,
    ApiKey.DELETE_SHARE_GROUP_STATE: _SHARE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _SHARE,
    ApiKey.STREAMS_GROUP_HEARTBEAT: _STREAMS,
    ApiKey.STREAMS_GROUP_DESCRIBE: _STREAMS,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _SHARE,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _SHARE,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _SHARE,
}
"""Why an API is not served, by its key."""


NOTHING_MADE: Final[Mapping[int, Mapping[str, Any]]] = {
    ApiKey.INIT_PRODUCER_ID: {"producer_epoch": -1},
    ApiKey.CREATE_DELEGATION_TOKEN: {
        "principal_type": "User",
        "principal_name": "ANONYMOUS",
        "token_requester_principal_type": "User",
        "token_requester_principal_name": "ANONYMOUS",
        "issue_timestamp_ms": -1,
        "expiry_timestamp_ms": -1,
        "max_timestamp_ms": -1,
    },
}
"""What responses say beside their error where the default of a field means something."""


class Mirror(NamedTuple):
    """How the items of a response follow from those of its request."""

    items: str
    """The list in the request."""
    results: str
    """The list in the response."""
    same: str
    """The field of both that names an item; an item of the request that is no message is the name itself."""
    inner: Mirror | None = None
    """Of a list in each item; the error is in its results then."""
    error: str = ERROR


_GROUPS = Mirror("group_ids", "groups", "group_id")
_SHARE_STATE = Mirror("topics", "results", "topic_id", Mirror("partitions", "partitions", "partition"))

MIRRORS: Final[Mapping[int, Mirror]] = {
    ApiKey.ADD_PARTITIONS_TO_TXN: Mirror(
        "v3_and_below_topics",
        "results_by_topic_v3_and_below",
        "name",
        Mirror("partitions", "results_by_partition", "partition_index", error="partition_error_code"),
    ),
    ApiKey.WRITE_TXN_MARKERS: Mirror(
        "markers",
        "markers",
        "producer_id",
        Mirror("topics", "topics", "name", Mirror("partition_indexes", "partitions", "partition_index")),
    ),
    ApiKey.TXN_OFFSET_COMMIT: Mirror(
        "topics", "topics", "name", Mirror("partitions", "partitions", "partition_index")
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: Mirror("entries", "entries", "entity"),
    ApiKey.DESCRIBE_TRANSACTIONS: Mirror("transactional_ids", "transaction_states", "transactional_id"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _GROUPS,
    ApiKey.SHARE_GROUP_DESCRIBE: _GROUPS,
    ApiKey.STREAMS_GROUP_DESCRIBE: _GROUPS,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.READ_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _SHARE_STATE,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Mirror("groups", "groups", "group_id"),
}
"""Responses that have no error of their own, in all versions or in some."""


@in_slices
async def handle(broker: Broker, context: RequestContext, request: Struct) -> Struct:
    """The refusal of a request that was well formed."""
    key, version = context.api_key, context.api_version
    cls = response_class(key)
    text = reason(key, version)
    if _has(cls, ERROR, version):
        values = {**NOTHING_MADE.get(key, {}), **_error(cls, version, text)}
        return cls(**{name: value for name, value in values.items() if _has(cls, name, version)})
    if isinstance(request, AlterUserScramCredentialsRequest):
        return await _of_users(context.turns, request, text)
    mirror = MIRRORS[key]
    return cls(**{mirror.results: await _mirrored(context.turns, request, mirror, cls, version, text)})


def reason(key: int, version: int) -> str:
    """What a client reads that sent an API or version which is not served."""
    name = API[key].name
    api = APIS.get(key)
    if api is not None:
        return f"{name} {version} is not served here: versions {api.first} to {api.last} are"
    return f"{name} is not served here: {REASONS[key]}"


async def _mirrored(
    turns: Turns, source: Any, mirror: Mirror, cls: type[Struct], version: int, text: str
) -> list[Struct]:
    found = _element(cls, mirror.results)
    inner = mirror.inner
    results: list[Struct] = []
    async for item in turns.over(getattr(source, mirror.items)):
        values: dict[str, Any] = {
            mirror.same: getattr(item, mirror.same) if isinstance(item, Struct) else item
        }
        if inner is not None:
            values[inner.results] = await _mirrored(turns, item, inner, found, version, text)
        elif mirror.error == ERROR:
            values |= _error(found, version, text)
        else:
            values[mirror.error] = ErrorCode.UNSUPPORTED_VERSION
        results.append(found(**values))
    return results


async def _of_users(
    turns: Turns, request: AlterUserScramCredentialsRequest, text: str
) -> AlterUserScramCredentialsResponse:
    """One result for each user, however many of its credentials are named."""
    deleted, upserted = (one.name for one in request.deletions), (one.name for one in request.upsertions)
    names = await turns.unique(chain(deleted, upserted))
    response = AlterUserScramCredentialsResponse()
    async for name in turns.over(names):
        response.results.append(
            AlterUserScramCredentialsResult(
                user=name, error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=text
            )
        )
    await turns.let_go(names)
    return response


def _error(cls: type[Struct], version: int, text: str) -> dict[str, Any]:
    values: dict[str, Any] = {ERROR: ErrorCode.UNSUPPORTED_VERSION}
    if _has(cls, TEXT, version):
        values[TEXT] = text
    return values


def _has(cls: type[Struct], name: str, version: int) -> bool:
    for one in cls.fields_:
        if one.name == name:
            first, last = parse_versions(one.versions)
            return first <= version <= last
    return False


def _element(cls: type[Struct], name: str) -> type[Struct]:
    for one in cls.fields_:
        if one.name == name and isinstance(one.element, type):
            return one.element
    raise ValueError(f"{cls.__name__} has no items called {name}")
