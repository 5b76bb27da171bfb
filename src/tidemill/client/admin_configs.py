"""The admin client's part for configuration: of topics, brokers, groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tidemill.client.admin_base import AdminBase, grace
from tidemill.client.admin_types import SOURCES, ConfigEntry, ConfigResource, ConfigSynonym, ResourceType
from tidemill.client.cluster import CONTROL
from tidemill.client.connection import Connection
from tidemill.client.errors import check
from tidemill.wire.apis import ApiKey
from tidemill.wire.messages import alter_configs, describe_configs, incremental_alter_configs

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


class ConfigAdmin(AdminBase):
    """Configuration: describe, change, replace."""

    def topic_configs(
        self, topic: str, timeout: float | None = None, *, documentation: bool = False
    ) -> dict[str, ConfigEntry]:
        """The configuration of a topic, by key."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return self.describe_configs(resource, documentation=documentation, timeout=timeout)

    def broker_configs(self, broker_id: int, timeout: float | None = None) -> dict[str, ConfigEntry]:
        """The configuration of a broker, by key."""
        return self.describe_configs(ConfigResource(ResourceType.BROKER, str(broker_id)), timeout=timeout)

    def describe_configs(
        self,
        resource: ConfigResource,
        keys: Iterable[str] | None = None,
        *,
        documentation: bool = False,
        broker: int | None = None,
        timeout: float | None = None,
    ) -> dict[str, ConfigEntry]:
        """The configuration of a resource: all keys, or ``keys``.

        Brokers apply a change at different times: ``broker`` is the id of the one to ask.
        """
        deadline = self._deadline(timeout)
        connection = (
            self._for_resource(resource, deadline) if broker is None else self._of_broker(broker, deadline)
        )
        version = connection.version(ApiKey.DESCRIBE_CONFIGS)
        request = describe_configs.DescribeConfigsRequest(
            resources=[
                describe_configs.DescribeConfigsResource(
                    resource_type=int(resource.kind),
                    resource_name=resource.name,
                    configuration_keys=None if keys is None else list(keys),
                )
            ],
            include_synonyms=version >= 1,
            include_documentation=documentation and version >= 3,
        )
        answer = connection.call(ApiKey.DESCRIBE_CONFIGS, request, version=version, timeout=grace(deadline))
        result = answer.results[0]
        what = f"describe the configuration of {_named(resource)}"
        check(result.error_code, what, detail=result.error_message, broker=connection.address)
        return {entry.name: _config_entry(entry) for entry in result.configs}

    def alter_configs(
        self,
        resource: ConfigResource,
        set: Mapping[str, str] | None = None,
        *,
        remove: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Changes keys of a resource, and leaves the others: set, back to the default, entries of lists."""
        deadline = self._deadline(timeout)
        changes = [(key, SET, value) for key, value in (set or {}).items()]
        changes += [(key, DELETE, "") for key in remove]
        changes += [(key, APPEND, value) for key, value in (append or {}).items()]
        changes += [(key, SUBTRACT, value) for key, value in (subtract or {}).items()]
        entries = [
            incremental_alter_configs.AlterableConfig(
                name=key, config_operation=operation, value=None if operation == DELETE else str(value)
            )
            for key, operation, value in changes
        ]
        request = incremental_alter_configs.IncrementalAlterConfigsRequest(
            resources=[
                incremental_alter_configs.AlterConfigsResource(
                    resource_type=int(resource.kind), resource_name=resource.name, configs=entries
                )
            ],
            validate_only=validate_only,
        )
        self._alter(resource, ApiKey.INCREMENTAL_ALTER_CONFIGS, request, deadline)

    def replace_configs(
        self,
        resource: ConfigResource,
        configs: Mapping[str, str],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Sets the whole configuration of a resource: what is not in ``configs`` goes back to its default."""
        deadline = self._deadline(timeout)
        request = alter_configs.AlterConfigsRequest(
            resources=[
                alter_configs.AlterConfigsResource(
                    resource_type=int(resource.kind),
                    resource_name=resource.name,
                    configs=[
                        alter_configs.AlterableConfig(name=key, value=str(value))
                        for key, value in configs.items()
                    ],
                )
            ],
            validate_only=validate_only,
        )
        self._alter(resource, ApiKey.ALTER_CONFIGS, request, deadline)

    def _alter(self, resource: ConfigResource, key: ApiKey, request: Any, deadline: float) -> None:
        connection = self._for_resource(resource, deadline)
        answer = connection.call(key, request, timeout=grace(deadline))
        what = f"change the configuration of {_named(resource)}"
        for result in answer.responses:
            check(result.error_code, what, detail=result.error_message, broker=connection.address)

    def _for_resource(self, resource: ConfigResource, deadline: float) -> Connection:
        """A broker's configuration is asked of that broker, everything else of any."""
        own = resource.kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER) and resource.name
        if not own:
            return self._cluster.any_connection(deadline)
        if not resource.name.isdigit():
            raise ValueError(f"a broker's name is its id, {resource.name!r} is no number")
        return self._of_broker(int(resource.name), deadline)

    def _of_broker(self, broker: int, deadline: float) -> Connection:
        if broker not in self._cluster.nodes:
            self._cluster.refresh(deadline)
        return self._cluster.connection(broker, CONTROL, deadline)


def _config_entry(entry: Any) -> ConfigEntry:
    source = SOURCES.get(entry.config_source, "unknown")
    return ConfigEntry(
        entry.name,
        entry.value,
        source,
        bool(entry.is_default) or source == "default",
        entry.read_only,
        entry.is_sensitive,
        [ConfigSynonym(s.name, s.value, SOURCES.get(s.source, "unknown")) for s in entry.synonyms],
        entry.documentation,
    )


def _named(resource: ConfigResource) -> str:
    return f"{resource.kind.name.lower().replace('_', ' ')} {resource.name or '(all)'!r}"
