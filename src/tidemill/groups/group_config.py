"""The settings of the group coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.model.unpacked_limit import UNPACKED_KEY

if TYPE_CHECKING:
    from tidemill.model.configs import BrokerConfig


class GroupConfig:
    """The group settings of the broker configuration. Times in milliseconds."""

    __slots__ = (
        "initial_rebalance_delay_ms",
        "max_session_timeout_ms",
        "max_size",
        "min_session_timeout_ms",
        "offset_metadata_size_max",
        "offsets_retention_ms",
        "unpacked_bytes_max",
    )

    def __init__(
        self,
        *,
        unpacked_bytes_max: int,
        initial_rebalance_delay_ms: int = 3_000,
        max_size: int = 2**31 - 1,
        min_session_timeout_ms: int = 6_000,
        max_session_timeout_ms: int = 1_800_000,
        offset_metadata_size_max: int = 4_096,
        offsets_retention_ms: int = 10_080 * 60_000,
    ) -> None:
        self.initial_rebalance_delay_ms = initial_rebalance_delay_ms
        self.max_size = max_size
        self.min_session_timeout_ms = min_session_timeout_ms
        self.max_session_timeout_ms = max_session_timeout_ms
        self.offset_metadata_size_max = offset_metadata_size_max
        self.offsets_retention_ms = offsets_retention_ms
        self.unpacked_bytes_max = unpacked_bytes_max

    @classmethod
    def from_broker(cls, config: BrokerConfig) -> GroupConfig:
        """Reads the keys of a broker configuration."""
        return cls(
            initial_rebalance_delay_ms=config.int("group.initial.rebalance.delay.ms"),
            max_size=config.int("group.max.size"),
            min_session_timeout_ms=config.int("group.min.session.timeout.ms"),
            max_session_timeout_ms=config.int("group.max.session.timeout.ms"),
            offset_metadata_size_max=config.int("offset.metadata.max.bytes"),
            offsets_retention_ms=config.int("offsets.retention.minutes") * 60_000,
            unpacked_bytes_max=config.int(UNPACKED_KEY),
        )
