"""Whether a target cluster can have mirrors with the same offsets."""

from __future__ import annotations

import uuid

from tidemill.client.admin import Admin
from tidemill.client.admin_types import NewTopic
from tidemill.client.errors import ClientError
from tidemill.model.errors import ConfigError, ErrorCode
from tidemill.model.mirror_state import ACTIVE, MIRROR_STATE


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
