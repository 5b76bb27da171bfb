"""The response of ``/healthz`` for a started broker."""

from __future__ import annotations

from typing import Any

from tidemill.broker.broker import Broker


def health_of(broker: Broker) -> tuple[bool, dict[str, Any]]:
    """Whether the broker is healthy, and its details, with ``reason`` if it is not."""
    failed = [one.path for one in broker.log_manager.dirs.all if one.failure]
    full = list(broker.replica_manager.full)
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
    details: dict[str, Any] = {
        "cluster_id": broker.cluster_id,
        "broker_id": broker.node_id,
        "failed_directories": failed,
        "full_directories": full,
        "store_silent_s": round(silent_s, 3),
    }
    if reasons:
        details["reason"] = "; ".join(reasons)
    return not reasons, details
