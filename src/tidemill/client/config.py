"""The validated configuration of one client.

Keys are given as a mapping (``{"group.id": "g"}``) or as keywords (``group_id="g"``).
:mod:`tidemill.client.config_keys` has the table.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.client.config_keys import COMMON, CONSUMER, IDLE_CLIENT_KEYS, KEYS, PRODUCER, REQUIRED, find_key
from tidemill.model.configs.config_values import ParsedConfig
from tidemill.model.configs.listeners import join_address
from tidemill.model.errors import ConfigError
from tidemill.model.secrets import Settings
from tidemill.wire.codegen import STRING_BYTES_MAX

logger = logging.getLogger(__name__)

TRANSACTION_TIMEOUT = "transaction.timeout.ms"
TWO_PHASE_COMMIT = "transaction.two.phase.commit.enable"


class ClientConfig(ParsedConfig):
    """The validated settings of one client, by Kafka's names. Immutable and picklable."""

    __slots__ = ("_given", "role")

    def __init__(self, role: str, given: Mapping[str, Any] | None = None, /, **keywords: Any) -> None:
        self.role = role
        self._given: dict[str, Any] = {}
        for name, value in [*(given or {}).items(), *((n.replace("_", "."), v) for n, v in keywords.items())]:
            key = find_key(name, role)
            if key is None:
                logger.info("%s is ignored; %s", name, IDLE_CLIENT_KEYS[name])
            elif key.scope in (COMMON, role):
                self._given[key.name] = key.parse(value)
        own = [key for key in KEYS.values() if key.scope in (COMMON, role)]
        values = {key.name: self._given.get(key.name, key.default) for key in own}
        super().__init__(values)
        for key in own:
            if key.default == REQUIRED and key.name not in self._given:
                raise ConfigError(f"{key.name} is missing: {key.doc}")
        self._check(values)

    def _check(self, values: dict[str, Any]) -> None:
        """Checks the constraints between keys, and sets the defaults that depend on other keys."""
        self._check_security(values)
        if self.role == PRODUCER:
            self._check_producer(values)
        elif self.role == CONSUMER and values["heartbeat.interval.ms"] >= values["session.timeout.ms"]:
            raise ConfigError(
                f"heartbeat.interval.ms={values['heartbeat.interval.ms']} must be less than "
                f"session.timeout.ms={values['session.timeout.ms']}; a third of it is usual"
            )

    def _check_security(self, values: dict[str, Any]) -> None:
        protocol = values["security.protocol"]
        if protocol.startswith("sasl"):
            from tidemill.client.login import login_of

            login_of(self)
        elif values["sasl.mechanism"] or values["sasl.jaas.config"]:
            logger.warning(
                "security.protocol=%s does not log in, although a login is given: set sasl_ssl, "
                "or sasl_plaintext",
                protocol,
            )
        if protocol.endswith("ssl"):
            from tidemill.client.tls import check_tls

            check_tls(self)

    def _check_producer(self, values: dict[str, Any]) -> None:
        obstacle = _idempotence_obstacle(values)
        if values["transactional.id"] is not None:
            if values["enable.idempotence"] is False:
                obstacle = "enable.idempotence=true, but it is false"
            if obstacle:
                raise ConfigError(f"transactional.id needs {obstacle}")
        self._check_transactions(values)
        if values["enable.idempotence"] is None:
            values["enable.idempotence"] = not obstacle
        elif values["enable.idempotence"] and obstacle:
            raise ConfigError(f"enable.idempotence=true needs {obstacle}")
        if values["delivery.timeout.ms"] < values["linger.ms"] + values["request.timeout.ms"]:
            if "delivery.timeout.ms" in self._given:
                raise ConfigError(
                    f"delivery.timeout.ms={values['delivery.timeout.ms']} must be at least linger.ms "
                    f"+ request.timeout.ms = {values['linger.ms'] + values['request.timeout.ms']}"
                )
            values["delivery.timeout.ms"] = values["linger.ms"] + values["request.timeout.ms"]

    def _check_transactions(self, values: dict[str, Any]) -> None:
        name = values["transactional.id"]
        if name is None:
            for key in (TRANSACTION_TIMEOUT, TWO_PHASE_COMMIT):
                if key in self._given:
                    logger.warning("%s has no effect without transactional.id", key)
            return
        if not name:
            raise ConfigError("transactional.id is empty: give a name, or leave it out")
        size = len(name.encode())
        if size > STRING_BYTES_MAX:
            raise ConfigError(f"transactional.id has {size} bytes: at most {STRING_BYTES_MAX} are possible")
        if values[TWO_PHASE_COMMIT] and TRANSACTION_TIMEOUT in self._given:
            raise ConfigError(
                f"{TRANSACTION_TIMEOUT}={values[TRANSACTION_TIMEOUT]} cannot be combined with "
                f"{TWO_PHASE_COMMIT}=true: its transactions have no timeout. Leave one of them out"
            )

    def __repr__(self) -> str:
        return f"ClientConfig({self.role!r}, {Settings(self._given)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (ClientConfig, (self.role, self.plain_given()))

    def plain_given(self) -> dict[str, Any]:
        """Returns the validated settings by their current names, with the servers as text.

        The result creates an equal configuration.
        """
        plain = dict(self._given)
        servers = plain.get("bootstrap.servers")
        if servers:
            plain["bootstrap.servers"] = [join_address(host, port) for host, port in servers]
        return plain


def config_of(
    role: str,
    bootstrap_servers: str | Sequence[str] | None,
    config: Mapping[str, Any] | None,
    keywords: Mapping[str, Any],
) -> ClientConfig:
    """Builds a client's configuration from its constructor's arguments; servers override the mapping's."""
    given = dict(config or {})
    if bootstrap_servers is not None:
        given["bootstrap.servers"] = bootstrap_servers
    return ClientConfig(role, given, **keywords)


def _idempotence_obstacle(values: Mapping[str, Any]) -> str:
    """Returns what idempotence needs, and the value that prevents it; empty if it is possible."""
    if values["acks"] != -1:
        return f"acks=all, but acks={values['acks']}"
    if values["retries"] < 1:
        return f"retries of at least 1, but retries={values['retries']}"
    in_flight = values["max.in.flight.requests.per.connection"]
    if in_flight > 5:
        return f"max.in.flight.requests.per.connection of at most 5, but it is {in_flight}"
    return ""
