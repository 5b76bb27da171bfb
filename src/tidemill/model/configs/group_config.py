"""The configuration of a group, and the validation of its settings.

Source: KIP-848 and KIP-932; Apache Kafka, ``GroupConfig.java``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from tidemill.model.configs.all_keys import BROKER_KEYS, GROUP_KEYS
from tidemill.model.configs.broker_config import BrokerConfig
from tidemill.model.configs.config_def import INT, Value
from tidemill.model.configs.config_values import DEFAULT, DYNAMIC_GROUP, Config, Synonym
from tidemill.model.errors import ConfigError

OFFSET_RESET: Final = "share.auto.offset.reset"
RESETS: Final = ("earliest", "latest")
RESET_AFTER: Final = re.compile(
    r"by_duration:P(?=.)(\d{1,9}D)?(T(?=\d)(\d{1,9}H)?(\d{1,9}M)?(\d{1,9}(\.\d{1,9})?S)?)?"
)
"""``by_duration:`` and a duration of ISO 8601, as PnDTnHnMn.nS."""
STANDBY: Final = "streams.num.standby.replicas"


class GroupConfig(Config):
    """The effective settings of a group: its own settings, ``overrides`` as written, over the broker's.

    An invalid setting in the store, which another program wrote, counts as not set.
    """

    __slots__ = ("_own", "broker")

    def __init__(self, broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
        self.broker = broker
        self._own, _ = GROUP_KEYS.parse_stored(overrides)

    def get(self, key: str) -> Value:
        """Returns the effective value of the group key."""
        if key in self._own:
            return self._own[key]
        broker_key = f"group.{key}"
        return self.broker.get(broker_key) if broker_key in BROKER_KEYS else GROUP_KEYS[key].default

    def rendered(self, key: str) -> str | None:
        """Returns the effective value as in DescribeConfigs."""
        return GROUP_KEYS[key].render(self.get(key))

    def synonyms(self, key: str) -> list[Synonym]:
        """Returns all sources that have a value for the group key, the effective one first."""
        found = []
        if key in self._own:
            found.append(Synonym(key, self.rendered(key), DYNAMIC_GROUP))
        if f"group.{key}" in BROKER_KEYS:
            found += self.broker.synonyms(f"group.{key}")
        else:
            found.append(Synonym(key, GROUP_KEYS[key].render(GROUP_KEYS[key].default), DEFAULT))
        return found


def check_group_settings(touched: Mapping[str, str], result: Mapping[str, str], broker: BrokerConfig) -> None:
    """Raises ConfigError when a group may not set ``touched``, which results in the settings ``result``.

    The broker's keys ``group.KIND.min.`` and ``.max.`` limit the settings of groups.
    """
    for name, text in touched.items():
        value = GROUP_KEYS.parse(name, text)
        if name == OFFSET_RESET and text not in RESETS and not RESET_AFTER.fullmatch(text):
            raise ConfigError(
                f"{name}={text}: allowed is {', '.join(RESETS)} or by_duration:PnDTnHnMn.nS, as in "
                "by_duration:PT1H"
            )
        if GROUP_KEYS[name].type == INT and isinstance(value, int):
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
