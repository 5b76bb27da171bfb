"""Logs broker registrations, failed brokers and changed registrations."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from tidemill.coordination.cluster_image import BrokerImage

logger = logging.getLogger(__name__)


def log_broker_changes(
    before: Mapping[int, BrokerImage], living: Mapping[int, BrokerImage], registered: Sequence[int]
) -> None:
    """Logs the difference between the live brokers and ``before``; ``registered`` have a new registration."""
    log_membership(registered, [broker for broker in before if broker not in living], living)
    for broker, now in living.items():
        known = before.get(broker)
        if known is None or broker in registered:
            continue
        if known.endpoints != now.endpoints:
            listed = ", ".join(
                f"{endpoint.listener}://{endpoint.host}:{endpoint.port}"
                for endpoint in now.endpoints.values()
            )
            logger.info("broker %d changed its endpoints to %s", broker, listed)
        if known.lost != now.lost:
            logger.debug("broker %d changed the lost replicas in its registration", broker)


def log_former_controller(known: Collection[int], living: Collection[int]) -> None:
    """Logs the difference between the live brokers and those that the former controller announced."""
    if known:  # Empty for the first controller, or if this broker has just started.
        log_membership(
            [broker for broker in living if broker not in known],
            [broker for broker in known if broker not in living],
            living,
        )


def log_membership(registered: Sequence[int], gone: Sequence[int], living: Collection[int]) -> None:
    """Logs one line at INFO, or none if no broker registered or failed."""
    if registered or gone:
        logger.info(
            "brokers registered: %s, brokers gone: %s; live brokers: %s", registered, gone, sorted(living)
        )
