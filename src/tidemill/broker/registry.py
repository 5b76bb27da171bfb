"""Which APIs this broker speaks, in which versions, and where their handlers are.

A handler module is imported with the first request of its API. What ApiVersions announces is derived from
this table. What is described in :mod:`tidemill.wire.apis`, and is not in it, is refused.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

from tidemill.model.errors import ProtocolError
from tidemill.wire.apis import API


class Api:
    """One API as this broker speaks it."""

    __slots__ = ("announced_min", "first", "handle", "key", "last", "module", "to_controller")

    def __init__(
        self,
        key: int,
        module: str,
        first: int,
        last: int,
        announced_min: int | None = None,
        *,
        to_controller: bool = False,
    ) -> None:
        self.key = key
        self.module = module
        self.first = first
        self.last = last
        self.announced_min = first if announced_min is None else announced_min
        self.to_controller = to_controller
        """Other brokers pass it on to the controller."""
        self.handle: Callable[..., Any] | None = None

    def handler(self) -> Callable[..., Any]:
        """The handler's function, imported when it is first asked for."""
        if self.handle is None:
            module = importlib.import_module(f"tidemill.broker.handlers.{self.module}")
            handle: Callable[..., Any] = module.handle
            self.handle = handle
        return self.handle


_APIS: Final = (
    Api(0, "produce", 0, 13),
    Api(1, "fetch", 0, 18),
    Api(2, "list_offsets", 0, 11),
    Api(3, "metadata", 0, 13),
    Api(4, "leader_and_isr", 5, 7),
    Api(5, "stop_replica", 3, 4),
    Api(6, "update_metadata", 7, 8),
    Api(7, "controlled_shutdown", 0, 3),
    Api(8, "offset_commit", 0, 10),
    Api(9, "offset_fetch", 0, 10),
    Api(10, "find_coordinator", 0, 6),
    Api(11, "join_group", 0, 9),
    Api(12, "heartbeat", 0, 4),
    Api(13, "leave_group", 0, 5),
    Api(14, "sync_group", 0, 5),
    Api(15, "describe_groups", 0, 6),
    Api(16, "list_groups", 0, 5),
    Api(18, "api_versions", 0, 4),
    Api(19, "create_topics", 0, 7, to_controller=True),
    Api(20, "delete_topics", 0, 6, to_controller=True),
    Api(21, "delete_records", 0, 2),
    Api(22, "init_producer_id", 0, 5),
    Api(23, "offset_for_leader_epoch", 0, 4),
    Api(29, "describe_acls", 0, 3),
    Api(30, "create_acls", 0, 3),
    Api(31, "delete_acls", 0, 3),
    Api(32, "describe_configs", 0, 4),
    Api(33, "alter_configs", 0, 2, to_controller=True),
    Api(34, "alter_replica_log_dirs", 0, 2),
    Api(35, "describe_log_dirs", 0, 5),
    Api(37, "create_partitions", 0, 3, to_controller=True),
    Api(42, "delete_groups", 0, 2),
    Api(43, "elect_leaders", 0, 2, to_controller=True),
    Api(44, "incremental_alter_configs", 0, 1, to_controller=True),
    Api(45, "alter_partition_reassignments", 0, 1, to_controller=True),
    Api(46, "list_partition_reassignments", 0, 0, to_controller=True),
    Api(47, "offset_delete", 0, 0),
    Api(48, "describe_client_quotas", 0, 1),
    Api(50, "describe_user_scram_credentials", 0, 0),
    Api(56, "alter_partition", 3, 3),
    Api(57, "update_features", 0, 2),
    Api(58, "envelope", 0, 0),
    Api(60, "describe_cluster", 0, 2),
    Api(61, "describe_producers", 0, 0),
    Api(64, "unregister_broker", 0, 0, to_controller=True),
    Api(74, "list_config_resources", 0, 1),
    Api(75, "describe_topic_partitions", 0, 0),
)

APIS: Final[dict[int, Api]] = {api.key: api for api in _APIS}
"""Every API that is served, by its key."""

_refused: dict[int, Api] = {}


def api_for(key: int, version: int) -> Api:
    """Who answers a request: the API's handler, or the one that refuses what is known and not served.

    Raises ProtocolError for a request that nobody can read, as its key or version is unknown.
    """
    api = APIS.get(key)
    if api is not None and api.first <= version <= api.last:
        return api
    spec = API.get(key)
    if spec is None:
        raise ProtocolError(f"{key} is no API key of this protocol (version {version} was asked for)")
    if not spec.version_min <= version <= spec.version_max:
        raise ProtocolError(
            f"{spec.name} has no version {version} here: {spec.version_min} to {spec.version_max} are known"
        )
    refused = _refused.get(key)
    if refused is None:
        refused = _refused[key] = Api(key, "not_served", spec.version_min, spec.version_max)
    return refused
