"""What holds for one group, and what may be set for it.

Source: KIP-848 and KIP-932; Apache Kafka, ``GroupConfig.java``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidemill.model.configs.keys import INT, Value
from tidemill.model.configs.tables import BROKER_KEYS, GROUP_KEYS
from tidemill.model.configs.topic import near
from tidemill.model.configs.values import DEFAULT, DYNAMIC_GROUP, Config, Synonym
from tidemill.model.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.model.configs.broker import BrokerConfig

OFFSET_RESET: Final = "share.auto.offset.reset"
RESETS: Final = ("earliest", "latest")
RESET_AFTER: Final = re.compile(
    r"by_duration:P(?=.)(\d{1,9}D)?(T(?=\d)(\d{1,9}H)?(\d{1,9}M)?(\d{1,9}(\.\d{1,9})?S)?)?"
)
"""``by_duration:`` and a duration of ISO 8601, as PnDTnHnMn.nS."""
STANDBY: Final = "streams.num.standby.replicas"


class GroupConfig(Config):
    """What holds for one group: its own settings over the broker's. ``overrides`` are its own, as written.

    One of its own that makes no sense, as another program wrote it, counts as not set.
    """

    __slots__ = ("_own", "broker", "overrides")

    def __init__(self, broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
        self.broker = broker
        self.overrides: dict[str, str] = {}
        self._own: dict[str, Value] = {}
        for name, text in overrides.items():
            if name in GROUP_KEYS:
                try:
                    self._own[name] = GROUP_KEYS[name].parse(text)
                except ConfigError:
                    continue
                self.overrides[name] = text

    def get(self, key: str) -> Value:
        """The value that holds for the group key."""
        if key in self._own:
            return self._own[key]
        broker_key = f"group.{key}"
        return self.broker.get(broker_key) if broker_key in BROKER_KEYS else GROUP_KEYS[key].default

    def rendered(self, key: str) -> str | None:
        """The value that holds, as DescribeConfigs gives it."""
        return GROUP_KEYS[key].render(self.get(key))

    def synonyms(self, key: str) -> list[Synonym]:
        """All places that hold a value for the group key, the one that counts first."""
        found = []
        if key in self._own:
            found.append(Synonym(key, self.rendered(key), DYNAMIC_GROUP))
        if f"group.{key}" in BROKER_KEYS:
            found += self.broker.synonyms(f"group.{key}")
        else:
            found.append(Synonym(key, GROUP_KEYS[key].render(GROUP_KEYS[key].default), DEFAULT))
        return found


def check_group_settings(touched: Mapping[str, str], result: Mapping[str, str], broker: BrokerConfig) -> None:
    """Raises ConfigError when a group may not have the settings ``touched``, with which it has ``result``.

    The broker's keys ``group.KIND.min.`` and ``.max.`` bound what a group may set.
    """
    for name, text in touched.items():
        key = GROUP_KEYS.get(name)
        if key is None:
            raise ConfigError(f"Unknown group config name: {name}{near(name, GROUP_KEYS)}")
        value = key.parse(text)
        if name == OFFSET_RESET and text not in RESETS and not RESET_AFTER.fullmatch(text):
            raise ConfigError(
                f"{name}={text}: allowed is {', '.join(RESETS)} or by_duration:PnDTnHnMn.nS, as in "
                "by_duration:PT1H"
            )
        if key.type == INT and isinstance(value, int):
            _check_bounds(name, value, broker)
    config = GroupConfig(broker, result)
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if {session, heartbeat} & touched.keys() and config.int(heartbeat) >= config.int(session):
            raise ConfigError(
                f"{session}={config.int(session)} must be greater than {heartbeat}={config.int(heartbeat)}"
            )


def _check_bounds(name: str, value: int, broker: BrokerConfig) -> None:
    kind, _, rest = name.partition(".")
    if name == STANDBY:
        rest = "standby.replicas"
    least, most = f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}"
    if least in BROKER_KEYS and value < broker.int(least):
        raise ConfigError(f"{name}={value} must be at least {least}, which is {broker.int(least)}")
    if most in BROKER_KEYS and value > broker.int(most):
        raise ConfigError(f"{name}={value} must be at most {most}, which is {broker.int(most)}")
