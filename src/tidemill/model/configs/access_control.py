"""Refuses settings for access control or encryption, because neither is served.

A broker that ignored them would be open to every client, against its configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidemill.model.configs.config_values import Setting
from tidemill.model.errors import ConfigError

AUTHORIZER: Final = "authorizer.class.name"
SUPER_USERS: Final = "super.users"
ALLOW_WITHOUT_ACL: Final = "allow.everyone.if.no.acl.found"
INTER_BROKER: Final = "security.inter.broker.protocol"

AUTHORIZER_OPTIONS: Final = frozenset({SUPER_USERS, ALLOW_WITHOUT_ACL})
"""Keys of Kafka's authorizer. Kafka's broker does not define them; it passes them to the authorizer."""

NEXT_STEP: Final = (
    "Remove the key to run a broker that is open to every host that reaches its port, on a network that you "
    "trust; until access control is served, keep a cluster that needs it on Apache Kafka"
)


def check_access(settings: Mapping[str, Setting], options: Mapping[str, Setting]) -> None:
    """Raises ConfigError for a setting that asks for access control, with its key, value and next step.

    ``options`` contains the keys of :data:`AUTHORIZER_OPTIONS`. The parser of listeners checks those.
    """
    for name, setting in (*settings.items(), *options.items()):
        feature = _unserved_feature(name, setting.text)
        if feature:
            raise ConfigError(f"{name}={setting.text}: {feature}. {NEXT_STEP} ({setting.provenance})")


def _unserved_feature(name: str, text: str) -> str:
    """Returns the feature that a setting requires and that is not served; empty without one."""
    if name == AUTHORIZER and text:
        return "access lists are not served yet, so this authorizer would decide nothing"
    if name == SUPER_USERS and text:
        return "there is no authorizer yet, so every client could do what these users may"
    if name == ALLOW_WITHOUT_ACL and text.lower() == "false":
        return "there is no authorizer yet, so resources without ACLs would be open to every client"
    if name == INTER_BROKER and text not in ("", "PLAINTEXT"):
        return "brokers use PLAINTEXT between one another, because TLS and SASL are not served yet"
    return ""
