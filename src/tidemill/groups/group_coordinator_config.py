"""The settings of the group coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.coordinator_runtime.value_classes import Value
from tidemill.model.unpacked_limit import UNPACKED_KEY

if TYPE_CHECKING:
    from tidemill.model.configs import BrokerConfig


class GroupCoordinatorConfig(Value):
    """The settings of the broker configuration that the coordinator reads. Times in milliseconds.

    The settings of a single group are :class:`tidemill.model.configs.group_config.GroupConfig`.
    """

    unpacked_bytes_max: int
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    offset_commit_timeout_ms: int = 5_000
    offset_metadata_size_max: int = 4_096
    offsets_retention_ms: int = 10_080 * 60_000
    offsets_retention_check_interval_ms: int = 600_000

    @classmethod
    def from_broker(cls, config: BrokerConfig) -> GroupCoordinatorConfig:
        """Reads the keys of a broker configuration."""
        return cls(
            initial_rebalance_delay_ms=config.int("group.initial.rebalance.delay.ms"),
            max_size=config.int("group.max.size"),
            min_session_timeout_ms=config.int("group.min.session.timeout.ms"),
            max_session_timeout_ms=config.int("group.max.session.timeout.ms"),
            offset_commit_timeout_ms=config.int("offsets.commit.timeout.ms"),
            offset_metadata_size_max=config.int("offset.metadata.max.bytes"),
            offsets_retention_ms=config.int("offsets.retention.minutes") * 60_000,
            offsets_retention_check_interval_ms=config.int("offsets.retention.check.interval.ms"),
            unpacked_bytes_max=config.int(UNPACKED_KEY),
        )
