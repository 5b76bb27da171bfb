"""Which targets can have mirrors with the same offsets."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from tidemill.client import Admin
from tidemill.client.errors import ClientError
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.pipeline.mirror.target_support import listener_at, refuse_other_listener
from tidemill.testing.broker import Broker
from tidemill.testing.zookeeper import free_ports


@pytest.mark.timeout(60)
def test_the_address_of_another_listener_than_the_inter_broker_one_is_refused() -> None:
    clients, brokers = (f"127.0.0.1:{port}" for port in free_ports(2))
    settings = {
        "listeners": f"PLAINTEXT://{clients},INTERNAL://{brokers}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
    }
    with Broker(settings):
        with Admin(clients) as admin, pytest.raises(ConfigError) as caught:
            refuse_other_listener(admin, clients)
        with Admin(brokers) as admin:
            refuse_other_listener(admin, brokers)
    with Broker() as one, Admin(one.bootstrap) as admin:
        refuse_other_listener(admin, one.bootstrap)
    assert f"the target {clients} is the listener PLAINTEXT of its brokers" in str(caught.value)
    assert "set --target to its address" in str(caught.value)


def test_a_target_whose_settings_cannot_be_read_is_accepted() -> None:
    refused = ClientError("no", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    admin = Mock(broker_configs=Mock(side_effect=refused))
    admin.describe_cluster.return_value.brokers = [Mock()]
    refuse_other_listener(admin, "west:1")
    assert admin.broker_configs.call_count == 1


@pytest.mark.parametrize(
    ("advertised", "listeners", "name"),
    [
        ("A://west:1, B://west:2", "A://:9", "B"),
        ("", "A://:1,B://0.0.0.0:2", "B"),
        ("", "A://[::]:2", "A"),
        ("A://east:2", "", ""),
        ("A://west:2,B://:2", "", ""),
        ("", "A://:0", ""),
    ],
)
def test_a_listener_is_found_by_its_address(advertised: str, listeners: str, name: str) -> None:
    settings = {"advertised.listeners": advertised, "listeners": listeners}
    assert listener_at("west", 2, settings) == name
