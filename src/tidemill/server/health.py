"""The response of ``/healthz``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from tidemill.broker.broker import Broker


class BrokerFacts(NamedTuple):
    """The facts about a started broker that the response contains."""

    cluster_id: str
    broker_id: int
    failed_directories: Sequence[str]
    full_directories: Sequence[str]
    store_silent_s: float
    """The time since the coordination store has responded; 0 while it responds."""


class Health(NamedTuple):
    """The health of a broker."""

    reason: str = ""
    """The reason that the broker is not healthy; empty for a healthy broker."""
    facts: BrokerFacts | None = None
    """None before the end of the start, and from the beginning of the stop on."""

    @property
    def is_healthy(self) -> bool:
        """Whether the broker serves all requests."""
        return not self.reason

    def to_json(self) -> str:
        """Returns the status, the facts and the reason as a JSON object."""
        document: dict[str, object] = {"status": "ok" if self.is_healthy else "unwell"}
        if self.facts is not None:
            document |= self.facts._asdict()
        if self.reason:
            document["reason"] = self.reason
        return json.dumps(document)


def health_of(broker: Broker) -> Health:
    """Returns the health of a started broker."""
    failed = [one.path for one in broker.log_manager.dirs.all if one.is_offline]
    full = list(broker.replica_manager.full_directories)
    silent_s = broker.store_connectivity.disconnected_ms / 1000
    reasons = []
    if failed:
        reasons.append(f"failed data directories: {', '.join(failed)}")
    if full:
        reasons.append(f"full data directories, which reject Produce requests: {', '.join(full)}")
    if silent_s:
        reasons.append(
            f"the coordination store has not responded for {silent_s:.1f} s: no leader is elected, and no "
            "topic or configuration can be changed"
        )
    facts = BrokerFacts(
        cluster_id=broker.cluster_id,
        broker_id=broker.node_id,
        failed_directories=failed,
        full_directories=full,
        store_silent_s=round(silent_s, 3),
    )
    return Health("; ".join(reasons), facts)
