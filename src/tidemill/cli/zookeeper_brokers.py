"""Finds the brokers of a cluster in ZooKeeper, for files of Kafka 0.8's consumers, which name no broker."""

from __future__ import annotations

from tidemill.coordination.encoding import NodeFormatError
from tidemill.coordination.nodes import BROKER_IDS, BrokerNode
from tidemill.model.configs.listeners import join_address
from tidemill.model.errors import ConfigError

TIMEOUT_S = 10.0


def brokers_in_zookeeper(connect: str, protocol: str = "PLAINTEXT") -> str:
    """Returns the addresses of the live brokers at ``zookeeper.connect``, as ``bootstrap.servers``.

    Raises ConfigError if ZooKeeper cannot be reached, or has no broker with this security protocol.
    """
    try:
        from kazoo.client import KazooClient
        from kazoo.exceptions import KazooException, NoNodeError
        from kazoo.handlers.threading import KazooTimeoutError
    except ImportError:
        raise ConfigError(
            f"zookeeper.connect={connect} needs tidemill[zookeeper]: install it, or give bootstrap.servers"
        ) from None
    try:
        client = KazooClient(hosts=connect, read_only=True)
    except ValueError as problem:
        raise ConfigError(
            f"zookeeper.connect={connect} is no address ({problem}): name HOST:PORT,HOST:PORT/PATH"
        ) from None
    try:
        client.start(timeout=TIMEOUT_S)
        addresses: list[str] = []
        for name in sorted(client.get_children(BROKER_IDS)):
            try:
                node = BrokerNode.decode(int(name), client.get(f"{BROKER_IDS}/{name}")[0])
            except NoNodeError:
                continue
            addresses += [
                join_address(endpoint.host, endpoint.port)
                for endpoint in node.endpoints
                if endpoint.security_protocol == protocol
            ]
    except (KazooException, KazooTimeoutError, NodeFormatError, ValueError) as problem:
        raise ConfigError(
            f"zookeeper.connect={connect}: its brokers cannot be read ({problem or type(problem).__name__}); "
            "check the address and its path, or give bootstrap.servers"
        ) from None
    finally:
        client.stop()
        client.close()
    if not addresses:
        raise ConfigError(
            f"zookeeper.connect={connect} has no live broker with {protocol}: start one, or give "
            "bootstrap.servers"
        )
    return ",".join(addresses)
