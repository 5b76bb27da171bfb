"""Known APIs and versions that are not served: UNSUPPORTED_VERSION, in the response that clients expect.

A client that sent ApiVersions does not use them. A client that did not send it would see its connection
close, and could not distinguish that from a broker failure.

A response without an error field of its own repeats the items of the request, each with the error.

Source: the protocol; Apache Kafka, ``getErrorResponse`` of its requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidemill.broker.api_declaration import HandledApi
from tidemill.broker.large_requests import RequestSlices, in_slices
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import API, ApiKey, response_class
from tidemill.wire.messages import alter_user_scram_credentials as messages
from tidemill.wire.schema import Struct, parse_versions

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

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
"""The reason that an API is not served, by its key."""


VALUES_BESIDE_ERROR: Final[Mapping[int, Mapping[str, Any]]] = {
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
"""Field values beside the error, where the default value of a field has a meaning."""


class ItemMap(NamedTuple):
    """The mapping of a request's items to those of its response."""

    items: str
    """The list in the request."""
    results: str
    """The list in the response."""
    same: str
    """The field of both that identifies an item; if an item of the request is not a struct, it is the
    value."""
    inner: ItemMap | None = None
    """The mapping of a list in each item, whose results then contain the error."""
    error: str = ERROR


_GROUPS = ItemMap("group_ids", "groups", "group_id")
_SHARE_STATE = ItemMap("topics", "results", "topic_id", ItemMap("partitions", "partitions", "partition"))

ITEM_MAPS: Final[Mapping[int, ItemMap]] = {
    ApiKey.ADD_PARTITIONS_TO_TXN: ItemMap(
        "v3_and_below_topics",
        "results_by_topic_v3_and_below",
        "name",
        ItemMap("partitions", "results_by_partition", "partition_index", error="partition_error_code"),
    ),
    ApiKey.WRITE_TXN_MARKERS: ItemMap(
        "markers",
        "markers",
        "producer_id",
        ItemMap("topics", "topics", "name", ItemMap("partition_indexes", "partitions", "partition_index")),
    ),
    ApiKey.TXN_OFFSET_COMMIT: ItemMap(
        "topics", "topics", "name", ItemMap("partitions", "partitions", "partition_index")
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: ItemMap("entries", "entries", "entity"),
    ApiKey.DESCRIBE_TRANSACTIONS: ItemMap("transactional_ids", "transaction_states", "transactional_id"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _GROUPS,
    ApiKey.SHARE_GROUP_DESCRIBE: _GROUPS,
    ApiKey.STREAMS_GROUP_DESCRIBE: _GROUPS,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.READ_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.WRITE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.DELETE_SHARE_GROUP_STATE: _SHARE_STATE,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _SHARE_STATE,
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: ItemMap("groups", "groups", "group_id"),
}
"""Responses without an error field of their own, in all versions or in some."""


@in_slices
async def handle(broker: Broker, context: RequestContext, request: Struct) -> Struct:
    """Returns the refusal of a well-formed request."""
    key, version = context.api_key, context.api_version
    cls = response_class(key)
    text = reason(broker.apis.get(key), key, version)
    if _has_field(cls, ERROR, version):
        values = {**VALUES_BESIDE_ERROR.get(key, {}), **_error(cls, version, text)}
        return cls(**{name: value for name, value in values.items() if _has_field(cls, name, version)})
    if isinstance(request, messages.AlterUserScramCredentialsRequest):
        return await _user_errors(context.slices, request, text)
    mapping = ITEM_MAPS[key]
    return cls(**{mapping.results: await _item_errors(context.slices, request, mapping, cls, version, text)})


REFUSED: Final[Mapping[int, HandledApi]] = {
    key: HandledApi(spec.key, spec.version_min, spec.version_max, handle) for key, spec in API.items()
}
"""For each API of the protocol, the refusal of all its versions."""


def reason(api: HandledApi | None, key: int, version: int) -> str:
    """Returns the error message for an API that is not served, or a version that ``api`` does not have."""
    name = API[key].name
    if api is not None:
        return f"{name} {version} is not served here: versions {api.first} to {api.last} are"
    return f"{name} is not served here: {REASONS[key]}"


async def _item_errors(
    slices: RequestSlices, source: Any, mapping: ItemMap, cls: type[Struct], version: int, text: str
) -> list[Struct]:
    found = _element(cls, mapping.results)
    inner = mapping.inner
    results: list[Struct] = []
    async for item in slices.over(getattr(source, mapping.items)):
        values: dict[str, Any] = {
            mapping.same: getattr(item, mapping.same) if isinstance(item, Struct) else item
        }
        if inner is not None:
            values[inner.results] = await _item_errors(slices, item, inner, found, version, text)
        elif mapping.error == ERROR:
            values |= _error(found, version, text)
        else:
            values[mapping.error] = ErrorCode.UNSUPPORTED_VERSION
        results.append(found(**values))
    return results


async def _user_errors(
    slices: RequestSlices, request: messages.AlterUserScramCredentialsRequest, text: str
) -> messages.AlterUserScramCredentialsResponse:
    """Returns one result per user, regardless of the number of its credentials in the request."""
    deleted, upserted = (
        (deletion.name for deletion in request.deletions),
        (upsertion.name for upsertion in request.upsertions),
    )
    names = await slices.unique(chain(deleted, upserted))
    response = messages.AlterUserScramCredentialsResponse()
    async for name in slices.over(names):
        response.results.append(
            messages.AlterUserScramCredentialsResult(
                user=name, error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=text
            )
        )
    await slices.clear(names)
    return response


def _error(cls: type[Struct], version: int, text: str) -> dict[str, Any]:
    values: dict[str, Any] = {ERROR: ErrorCode.UNSUPPORTED_VERSION}
    if _has_field(cls, TEXT, version):
        values[TEXT] = text
    return values


def _has_field(cls: type[Struct], name: str, version: int) -> bool:
    for field in cls.fields_:
        if field.name == name:
            first, last = parse_versions(field.versions)
            return first <= version <= last
    return False


def _element(cls: type[Struct], name: str) -> type[Struct]:
    for field in cls.fields_:
        if field.name == name and isinstance(field.element, type):
            return field.element
    raise ValueError(f"{cls.__name__} has no items called {name}")
