"""TLS for the client's connections, where ``security.protocol=ssl`` asks for it."""

from __future__ import annotations

import socket
import ssl

from tidemill.client.config import ClientConfig
from tidemill.model.errors import ConfigError
from tidemill.model.faults import fault_of


def context_for(config: ClientConfig) -> ssl.SSLContext:
    """The settings of ``ssl.*``: authorities, the client's certificate, whether names are checked."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    try:
        if config["ssl.ca.location"]:
            context.load_verify_locations(config.text("ssl.ca.location"))
        if config["ssl.certificate.location"]:
            context.load_cert_chain(
                config.text("ssl.certificate.location"),
                config["ssl.key.location"],
                config["ssl.key.password"],
            )
    except (OSError, ssl.SSLError) as problem:
        raise ConfigError(
            "the files of ssl.ca.location, ssl.certificate.location and ssl.key.location cannot be used: "
            f"{fault_of(problem)}"
        ) from problem
    if config["ssl.endpoint.identification.algorithm"] == "none":
        context.check_hostname = False
    return context


def wrap(plain: socket.socket, host: str, config: ClientConfig) -> ssl.SSLSocket:
    """The connection after its handshake; OSError when that fails."""
    return context_for(config).wrap_socket(plain, server_hostname=host)
