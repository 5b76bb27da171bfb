"""Listeners: the addresses that a broker binds, and the addresses that it advertises to clients.

    listener = NAME "://" [host] ":" port       an IPv6 host is in brackets

Sources: KIP-103 (names and their protocols), KIP-291 (controller listeners).
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.model.configs.config_values import SourcedConfig
from tidemill.model.errors import ConfigError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SERVED = ("PLAINTEXT",)
ANY_HOST = ("", "0.0.0.0", "::")
PROTOCOL_MAP = "listener.security.protocol.map"
MECHANISMS = "sasl.enabled.mechanisms"


class Listener(NamedTuple):
    """An address. An empty ``host`` means every interface; ``port`` 0 means any free port."""

    name: str
    protocol: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """``host:port``, with an IPv6 host in brackets."""
        return join_address(self.host, self.port)

    def __str__(self) -> str:
        return f"{self.name}://{self.address}"


def join_address(host: str, port: int) -> str:
    """Returns ``host:port`` as in bootstrap lists, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_listeners(config: SourcedConfig) -> tuple[Listener, ...]:
    """Returns the addresses to bind, from ``listeners`` or from the 0.8 keys ``host.name`` and ``port``."""
    texts = config.list("listeners")
    if not config.is_set("listeners") and (config.is_set("host.name") or config.is_set("port")):
        texts = (f"PLAINTEXT://{join_address(config.str('host.name'), config.int('port'))}",)
    controllers = {name.upper() for name in config.list("controller.listener.names")}
    protocols = _protocol_map(config)
    found = [_listener("listeners", text, protocols) for text in texts if _name(text) not in controllers]
    _refuse_repetition("listeners", found)
    for listener in found:
        if listener.protocol not in SERVED:
            raise _not_served(config, ",".join(texts), listener)
    if not found:
        raise ConfigError(
            f"listeners={','.join(texts)}: at least one listener is needed, as in PLAINTEXT://127.0.0.1:9092"
        )
    return tuple(found)


def _not_served(config: SourcedConfig, listeners: str, listener: Listener) -> ConfigError:
    asks, given = f"the protocol is {listener.protocol}", ""
    if listener.name != listener.protocol:
        asks = f"{listener.name} uses {listener.protocol}"
        given = f"{PROTOCOL_MAP}={config.str(PROTOCOL_MAP)}"
    if listener.protocol.startswith("SASL") and config.is_set(MECHANISMS):
        given += f"{' and ' if given else ''}{MECHANISMS}={','.join(config.list(MECHANISMS))}"
    return ConfigError(
        f"listeners={listeners}: {asks}{f' ({given})' if given else ''}, which comes with a later version; "
        "only PLAINTEXT listeners are served. Make it PLAINTEXT to run a broker that is open to every host "
        "that reaches its port, on a network that you trust; until TLS and SASL are served, keep a cluster "
        f"that needs them on Apache Kafka ({config.provenance('listeners')})"
    )


def advertised_listeners(config: SourcedConfig) -> tuple[Listener, ...]:
    """Returns the address to advertise to clients for each listener."""
    bound = {listener.name: listener for listener in parse_listeners(config)}
    named: dict[str, Listener] = {}
    if config.is_set("advertised.listeners"):
        named = _advertised(config, bound)
    elif config.is_set("advertised.host.name") or config.is_set("advertised.port"):
        first = next(iter(bound.values()))
        host = config.str("advertised.host.name") or _reachable(first.host)
        port = config.int("advertised.port") if config.is_set("advertised.port") else first.port
        named = {first.name: first._replace(host=host, port=port)}
    return tuple(named.get(name, own._replace(host=_reachable(own.host))) for name, own in bound.items())


def _advertised(config: SourcedConfig, bound: dict[str, Listener]) -> dict[str, Listener]:
    texts = config.list("advertised.listeners")
    shown = ",".join(texts)
    controllers = {name.upper() for name in config.list("controller.listener.names")}
    protocols = _protocol_map(config)
    found = {}
    for text in texts:
        if _name(text) in controllers:
            continue
        listener = _listener("advertised.listeners", text, protocols)
        if listener.name not in bound:
            raise ConfigError(
                f"advertised.listeners={shown}: {listener.name} is not among the listeners "
                f"({', '.join(bound)})"
            )
        if listener.host in ANY_HOST:
            raise ConfigError(
                f"advertised.listeners={shown}: clients cannot connect to "
                f"{listener.host or 'an empty host'}; name the host by which they reach this machine"
            )
        if listener.name in found:
            raise ConfigError(f"advertised.listeners={shown}: {listener.name} is listed twice")
        found[listener.name] = listener
    return found


def _listener(key: str, text: str, protocols: dict[str, str]) -> Listener:
    name, scheme, rest = text.partition("://")
    host, colon, port = rest.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    name = name.strip().upper()
    if not (scheme and colon and name) or any(letter in host for letter in "/[] ") or not _is_port(port):
        raise ConfigError(f"{key}={text}: allowed is NAME://host:port, as in PLAINTEXT://127.0.0.1:9092")
    if name not in protocols:
        raise ConfigError(
            f"{key}={text}: listener {name} has no protocol; "
            f"add {name}:PLAINTEXT to listener.security.protocol.map"
        )
    return Listener(name, protocols[name], host, int(port))


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= 65535


def _name(text: str) -> str:
    return text.partition("://")[0].strip().upper()


def _protocol_map(config: SourcedConfig) -> dict[str, str]:
    """Returns the protocol of each listener name. The names of protocols always map to themselves."""
    key = PROTOCOL_MAP
    text = config.str(key)
    protocols = {name: name for name in PROTOCOLS}
    for part in (part.strip() for part in text.split(",")):
        if not part:
            continue
        name, colon, protocol = (piece.strip().upper() for piece in part.partition(":"))
        if not colon or protocol not in PROTOCOLS:
            raise ConfigError(
                f"{key}={text}: {part!r} is not a NAME:PROTOCOL pair; protocols are {', '.join(PROTOCOLS)}"
            )
        protocols[name] = protocol
    return protocols


def _refuse_repetition(key: str, listeners: list[Listener]) -> None:
    names = set()
    addresses = set()
    for listener in listeners:
        if listener.name in names:
            raise ConfigError(
                f"{key}: {listener.name} is listed twice; give the second listener another name"
            )
        if listener.port and (listener.host, listener.port) in addresses:
            raise ConfigError(f"{key}: {listener.address} is listed twice; give each listener its own port")
        names.add(listener.name)
        addresses.add((listener.host, listener.port))


def _reachable(host: str) -> str:
    return "localhost" if host in ANY_HOST else host
