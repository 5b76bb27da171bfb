"""Whether a target cluster can have mirrors with the same offsets."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Final

from tidemill.client.admin import Admin
from tidemill.client.admin_types import NewTopic
from tidemill.client.errors import ClientError
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.model.mirror_state import ACTIVE, MIRROR_STATE

INTER_BROKER_LISTENER: Final = "inter.broker.listener.name"
ONLY_BETWEEN_BROKERS: Final = (
    f"a mirror accepts batches only at the inter-broker listener of its cluster ({INTER_BROKER_LISTENER}): "
    "set --target to its address, or copy ordinary records with --offsets new"
)

_LISTENER = re.compile(r"\s*([^:,]+)://(.*):(\d+)\s*")


def refuse_without_mirrors(target: Admin, address: str) -> None:
    """Raises ConfigError for a cluster whose topics cannot be mirrors, such as Apache Kafka.

    Asks for a topic that is a mirror, without creating it.
    """
    name = f"mirror-{uuid.uuid4().hex}"
    topic = NewTopic(name, 1, 1, {MIRROR_STATE: ACTIVE})
    result = target.create_topics([topic], validate_only=True)[name]
    if isinstance(result, ClientError) and result.code == ErrorCode.INVALID_CONFIG:
        raise ConfigError(
            f"the target {address} has no mirrors with the same offsets ({MIRROR_STATE} is unknown there): "
            "they need a Tidemill cluster; copy ordinary records with --offsets new"
        )


def refuse_other_listener(target: Admin, address: str) -> None:
    """Raises ConfigError if the address is known to be that of another listener than the inter-broker one.

    It is not known without the right to read the settings of brokers, or without a name of the listener.
    """
    try:
        broker = target.describe_cluster().brokers[0]
        entries = target.broker_configs(broker.broker_id)
    except (ClientError, IndexError):
        return
    keys = (INTER_BROKER_LISTENER, "advertised.listeners", "listeners")
    settings = {key: (entries[key].value or "") if key in entries else "" for key in keys}
    name = listener_at(broker.host, broker.port, settings)
    wanted = settings[INTER_BROKER_LISTENER]
    if wanted and name not in ("", wanted):
        raise ConfigError(
            f"the target {address} is the listener {name} of its brokers, and {INTER_BROKER_LISTENER} is "
            f"{wanted}: {ONLY_BETWEEN_BROKERS}"
        )


def listener_at(host: str, port: int, settings: Mapping[str, str]) -> str:
    """Returns the name of the listener of a broker with this address; empty if it is not known."""
    text = settings["advertised.listeners"] or settings["listeners"]
    found = [match.groups() for one in text.split(",") if (match := _LISTENER.fullmatch(one))]
    names = [
        name
        for name, its_host, its_port in found
        if int(its_port) == port and its_host.strip("[]") in (host, "", "0.0.0.0", "::")
    ]
    return names[0] if len(names) == 1 else ""
