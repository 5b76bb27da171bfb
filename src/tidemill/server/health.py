"""The response of ``/healthz``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from tidemill.broker.broker import Broker


class Health(NamedTuple):
    """The health of a broker."""

    reason: str = ""
    """The reason that the broker is not healthy; empty for a healthy broker."""
    facts: Mapping[str, object] = {}
    """Further fields of the response; empty before the end of the start, and after the stop has begun."""

    @property
    def is_healthy(self) -> bool:
        """Whether the broker serves all requests."""
        return not self.reason

    def to_json(self) -> str:
        """Returns the status, the facts and the reason as a JSON object."""
        document = {"status": "ok" if self.is_healthy else "unwell", **self.facts}
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
    facts = {
        "cluster_id": broker.cluster_id,
        "broker_id": broker.node_id,
        "failed_directories": failed,
        "full_directories": full,
        "store_silent_s": round(silent_s, 3),  # 0 while the coordination store responds.
    }
    return Health("; ".join(reasons), facts)
