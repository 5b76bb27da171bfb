"""The APIs of this broker, collected from the declarations of the modules that handle them.

ApiVersions announces this table. An API of :mod:`tidemill.wire.apis` without an entry is refused.
"""

from __future__ import annotations

from typing import Final

from tidemill.broker import fetch_handler, produce_handler
from tidemill.broker.api_declaration import HandledApi, ServedApi
from tidemill.broker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
    controlled_shutdown,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    envelope,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leader_and_isr,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    not_served,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    stop_replica,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    update_metadata,
    write_txn_markers,
)
from tidemill.model.errors import ProtocolError
from tidemill.wire.apis import API, ApiKey

_SERVED: Final[tuple[ServedApi, ...]] = (
    produce_handler.API,
    fetch_handler.API,
    list_offsets.API,
    metadata.API,
    leader_and_isr.API,
    stop_replica.API,
    update_metadata.API,
    controlled_shutdown.API,
    offset_commit.API,
    offset_fetch.API,
    find_coordinator.API,
    join_group.API,
    heartbeat.API,
    leave_group.API,
    sync_group.API,
    describe_groups.API,
    list_groups.API,
    api_versions.API,
    create_topics.API,
    delete_topics.API,
    delete_records.API,
    init_producer_id.API,
    offset_for_leader_epoch.API,
    add_partitions_to_txn.API,
    add_offsets_to_txn.API,
    end_txn.API,
    write_txn_markers.API,
    txn_offset_commit.API,
    describe_acls.API,
    create_acls.API,
    delete_acls.API,
    describe_configs.API,
    alter_configs.API,
    alter_replica_log_dirs.API,
    describe_log_dirs.API,
    create_partitions.API,
    delete_groups.API,
    elect_leaders.API,
    incremental_alter_configs.API,
    alter_partition_reassignments.API,
    list_partition_reassignments.API,
    offset_delete.API,
    describe_client_quotas.API,
    describe_user_scram_credentials.API,
    alter_partition.API,
    update_features.API,
    envelope.API,
    describe_cluster.API,
    describe_producers.API,
    describe_transactions.API,
    list_transactions.API,
    unregister_broker.API,
    list_config_resources.API,
    describe_topic_partitions.API,
)

APIS: Final[dict[int, ServedApi]] = {api.key: api for api in _SERVED}
"""All served APIs, by key."""


def api_for(key: int, version: int) -> HandledApi:
    """Returns the API that handles a request, or the one that refuses a known API or version.

    Produce and Fetch are refused: KafkaApis handles their served versions.
    Raises ProtocolError for an unknown key or version: its request cannot be decoded.
    """
    api = APIS.get(key)
    if isinstance(api, HandledApi) and api.has_version(version):
        return api
    if key not in API:
        raise ProtocolError(f"{key} is no API key of this protocol (requested version {version})")
    refused = not_served.refused_api(ApiKey(key))
    if not refused.has_version(version):
        raise ProtocolError(
            f"{API[key].name} has no version {version}: "
            f"the known versions are {refused.first} to {refused.last}"
        )
    return refused
