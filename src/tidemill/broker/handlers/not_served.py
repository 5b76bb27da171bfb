"""Known APIs and versions that are not served: UNSUPPORTED_VERSION, in the response that clients expect.

A client that sent ApiVersions does not use them. A client that did not send it would see its connection
close, and could not distinguish that from a broker failure.

The responses are those of :mod:`tidemill.wire.error_responses`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidemill.broker.api_declaration import HandledApi, ServedApi, declare_api
from tidemill.broker.eager_start import eager_start
from tidemill.model.errors import ErrorCode
from tidemill.wire.apis import API, ApiKey
from tidemill.wire.error_responses import error_response_in_slices
from tidemill.wire.schema import Struct

if TYPE_CHECKING:
    from tidemill.broker.broker import Broker
    from tidemill.broker.request_context import RequestContext

_SASL = "SASL comes with a later version"
_TOKENS = "delegation tokens come with a later version"
_QUORUM = "the cluster's metadata is in its coordination store, as with ZooKeeper: there is no Raft quorum"
_CONSUMER_PROTOCOL = "the consumer protocol of KIP-848 comes with a later version; use group.protocol=classic"
_METRICS = "clients are not asked for their metrics"
_SHARE = "share groups are not served"
_STREAMS = "streams groups are not served; use group.protocol=classic"

REASONS: Final[Mapping[int, str]] = {
    ApiKey.SASL_HANDSHAKE: _SASL,
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


@eager_start
async def handle(broker: Broker, context: RequestContext, request: Struct) -> Struct:
    """Returns the refusal of a well-formed request."""
    key, version = context.api_key, context.api_version
    text = reason(broker.apis.get(key), key, version)
    work = error_response_in_slices(key, version, request, ErrorCode.UNSUPPORTED_VERSION, text)
    return await context.slices.run(work)


def refused_api(key: ApiKey) -> HandledApi:
    """Returns the declaration that refuses all versions of an API."""
    spec = API[key]
    return declare_api(key, spec.version_min, spec.version_max, lambda: spec.request, handle)


def reason(api: ServedApi | None, key: int, version: int) -> str:
    """Returns the error message for an API that is not served, or a version that ``api`` does not have."""
    name = API[key].name
    if api is not None:
        return f"{name} {version} is not served here: versions {api.first} to {api.last} are"
    return f"{name} is not served here: {REASONS[key]}"
