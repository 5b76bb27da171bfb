"""What brokers of ``tidemill cluster up`` are told, each in a file of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
"""Only this machine: nobody has to log in."""

SESSION_MS = 6000
METRICS_PORT = "tidemill.metrics.port"
LISTENERS = re.compile(r"^[ \t]*listeners[ \t]*[=:][^,\n]*:(\d{1,5})[ \t]*(?:,|$)", re.MULTILINE)
"""The port of the first listener in a file of properties."""


def of_broker(
    number: int, port: int, total: int, zookeeper: str, given: Mapping[str, str], place: int
) -> dict[str, Any]:
    """The keys of a broker, with what goes with ``total`` brokers, and what was ``given``.

    ``place`` is its place among those made now: the first gets the port for metrics that was given, the next
    one that follows, and so on.
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


def port_in(file: Path, otherwise: int) -> int:
    """The port in a broker's file, which is its owner's to change; ``otherwise`` where none can be told."""
    try:
        found = LISTENERS.findall(file.read_text())
    except (OSError, ValueError):
        return otherwise
    return int(found[-1]) if found else otherwise


def port_told(ready_file: Path, pid: int) -> int | None:
    """Where the broker of that process said that it listens; None while it has not."""
    try:
        ready: Any = json.loads(ready_file.read_text())
        return int(ready["listeners"][0]["port"]) if ready["pid"] == pid else None
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def check(keys: Mapping[str, Any]) -> None:
    """Refuses in the words of 'tidemill config check' what a broker would not start with."""
    from tidemill.model.configs import BrokerConfig
    from tidemill.server.process import check_config

    check_config(BrokerConfig.from_sources(None, [f"{key}={value}" for key, value in keys.items()], {}))


def text(keys: Mapping[str, Any]) -> str:
    """The file."""
    lines = ["# Written once; what you change holds from the next start of this broker on."]
    lines += [f"{key}={_escaped(str(value))}" for key, value in keys.items()]
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    """As a file of properties has it."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")
