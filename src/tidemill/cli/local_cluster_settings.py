"""The settings of the brokers of ``tidemill cluster up``, one file per broker."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
"""Only this machine can connect, so that no login is needed."""

SESSION_MS = 6000
METRICS_PORT = "tidemill.metrics.port"
LISTENERS = re.compile(r"^[ \t]*listeners[ \t]*[=:][^,\n]*:(\d{1,5})[ \t]*(?:,|$)", re.MULTILINE)
"""Matches the port of the first listener in a properties file."""


def keys_of_broker(
    number: int, port: int, total: int, zookeeper: str, given: Mapping[str, str], place: int
) -> dict[str, Any]:
    """Returns the keys of a broker: the defaults for ``total`` brokers, overridden by ``given``.

    ``place`` is its index among the brokers created together: the first gets the port for metrics in
    ``given``, the next the following port, and so on.
    """
    factor, synced = min(3, total), 2 if total >= 3 else 1
    metrics = given.get(METRICS_PORT, "")
    own = {METRICS_PORT: int(metrics) + place} if metrics.isdecimal() and int(metrics) else {}
    return {
        "node.id": number,
        "listeners": f"PLAINTEXT://{HOST}:{port}",
        "zookeeper.connect": zookeeper,
        "zookeeper.session.timeout.ms": SESSION_MS,
        "default.replication.factor": factor,
        "min.insync.replicas": synced,
        "num.partitions": 3,
        "offsets.topic.num.partitions": 12,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.num.partitions": 12,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": synced,
        "group.initial.rebalance.delay.ms": 0,
        **given,
        **own,
    }


def configured_port(file: Path, otherwise: int) -> int:
    """Returns the port in a broker's file, which the user may edit; ``otherwise`` where none is found."""
    try:
        found = LISTENERS.findall(file.read_text())
    except (OSError, ValueError):
        return otherwise
    return int(found[-1]) if found else otherwise


def reported_port(ready_file: Path, pid: int) -> int | None:
    """Returns the port that the process reported in its ready file; None until it has."""
    try:
        ready: Any = json.loads(ready_file.read_text())
        return int(ready["listeners"][0]["port"]) if ready["pid"] == pid else None
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def check(keys: Mapping[str, Any]) -> None:
    """Raises ConfigError, as 'tidemill config check' does, for keys that a broker would not start with."""
    from tidemill.model.configs import BrokerConfig
    from tidemill.server.process import check_config

    check_config(BrokerConfig.from_sources(None, [f"{key}={value}" for key, value in keys.items()], {}))


def text(keys: Mapping[str, Any]) -> str:
    """Returns the text of the properties file."""
    lines = ["# Written once; your changes take effect at the next start of this broker."]
    lines += [f"{key}={_escaped(str(value))}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    """Escapes a value for a properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
