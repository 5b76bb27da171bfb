"""What the log layer is told of the settings of brokers and topics."""

from __future__ import annotations

from tidemill.broker.log_configs import log_config
from tidemill.model.configs import BrokerConfig


def test_topics_without_settings_have_what_their_broker_has_now() -> None:
    one, two = (BrokerConfig.from_sources(sets=[f"log.segment.bytes={size}"]) for size in (10_000, 20_000))
    assert log_config(one, "a", {}).segment_bytes == 10_000
    assert log_config(one, "b", {}) is log_config(one, "c", {})
    assert log_config(one, "d", {"segment.bytes": "30000"}).segment_bytes == 30_000
    assert log_config(two, "a", {}).segment_bytes == 20_000
    assert log_config(one, "a", {}).segment_bytes == 10_000
