"""The messages of a started broker: log lines, usage hints, and notifications for waiting programs."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
from collections.abc import Sequence

from tidemill import __version__, _build_mode
from tidemill.model.configs import BrokerConfig, Listener
from tidemill.model.configs.listeners import ANY_HOST, join_address

logger = logging.getLogger("tidemill.server")

DEFAULT_PORT = 9092


def log_startup(
    config: BrokerConfig,
    bound: Sequence[tuple[str, str, int]],
    metrics_port: int | None,
    *,
    quiet: bool = False,
) -> None:
    """Logs the addresses, and prints usage hints. ``bound`` contains (name, host, port) of the listeners."""
    mode = "compiled" if _build_mode.compiled else f"plain Python: {_build_mode.reason}"
    listening = ", ".join(f"{name}://{join_address(host or '0.0.0.0', port)}" for name, host, port in bound)
    directories = ", ".join(os.path.abspath(directory) for directory in config.log_dirs())
    logger.info("Tidemill %s (%s) listens on %s; data in %s", __version__, mode, listening, directories)
    if metrics_port is not None:
        address = join_address(config.str("tidemill.metrics.host"), metrics_port)
        logger.info("http://%s/metrics and http://%s/healthz are available", address, address)
    if not quiet and logger.isEnabledFor(logging.INFO):
        for line in hints(bound, config.advertised_listeners() if config.advertises() else ()):
            print(line, file=sys.stderr)  # noqa: T201


def hints(bound: Sequence[tuple[str, str, int]], advertised: Sequence[Listener]) -> list[str]:
    """Example commands, and a warning if clients on other machines cannot connect."""
    _, host, port = bound[0]
    address = join_address("localhost" if host in ANY_HOST else host, port)
    where = "" if address in (f"localhost:{DEFAULT_PORT}", f"127.0.0.1:{DEFAULT_PORT}") else f" -b {address}"
    lines = [
        "",
        "  Try it from another terminal:",
        f"    tidemill topic create hello{where}",
        f"    echo 'good morning' | tidemill produce hello{where}",
        f"    tidemill consume hello --from-beginning{where}",
    ]
    ports = {name: (listening_host, listening_port) for name, listening_host, listening_port in bound}
    for listener in advertised:
        listening_host, listening_port = ports.get(listener.name, ("", 0))
        if listening_host in ANY_HOST and is_loopback(listener.host):
            lines += [
                "  Clients on other machines cannot use the advertised address localhost. To serve them:",
                f"    tidemill serve --set advertised.listeners={listener.name}://"
                f"{join_address(socket.gethostname(), listening_port)}",
            ]
            break
    return [*lines, "  Stop it with ctrl-C.", ""]


def is_loopback(host: str) -> bool:
    """Whether ``host`` is a loopback address."""
    return host == "localhost" or host.startswith("127.") or host in ("::1", "::ffff:127.0.0.1")


def loopback_warning(
    listener: str, advertised_host: str, advertised_port: int, client: str, own: str
) -> str | None:
    """A warning if the advertised address is a loopback address and the client is remote; otherwise None.

    ``client`` and ``own`` are the two addresses of its connection. They are equal for a local client.
    """
    if not is_loopback(advertised_host) or is_loopback(client) or client == own:
        return None
    better = f"{listener}://{join_address(socket.gethostname(), advertised_port)}"
    return (
        f"the client {client} of listener {listener} is remote, and the advertised address "
        f"{join_address(advertised_host, advertised_port)} is a loopback address, which it cannot use; set "
        f"advertised.listeners to a reachable address, for example {better}"
    )


def notify_ready(
    bound: Sequence[tuple[str, str, int]],
    metrics_port: int | None,
    descriptor: int | None = None,
    file: str | None = None,
) -> None:
    """Notifies waiting programs: a line of JSON to a descriptor or file, and ``READY=1`` to systemd."""
    if descriptor is not None or file is not None:
        listeners = [{"name": name, "host": host, "port": port} for name, host, port in bound]
        line = json.dumps(
            {"pid": os.getpid(), "version": __version__, "listeners": listeners, "metrics_port": metrics_port}
        )
        if descriptor is not None:
            with contextlib.suppress(OSError), os.fdopen(descriptor, "w") as pipe:
                pipe.write(line + "\n")
        if file is not None and os.path.exists(file) and not os.path.isfile(file):
            # A pipe or a device is written to. A rename would replace it.
            with open(file, "w", encoding="utf-8") as out:
                out.write(line + "\n")
        elif file is not None:
            temporary = f"{file}.{os.getpid()}.tmp"
            with open(temporary, "w", encoding="utf-8") as out:
                out.write(line + "\n")
            os.replace(temporary, file)
    notify = os.environ.get("NOTIFY_SOCKET")
    if notify:
        address = "\0" + notify[1:] if notify.startswith("@") else notify
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unix:
            unix.sendto(b"READY=1", address)
