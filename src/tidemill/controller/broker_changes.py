"""Logs which brokers registered, which are gone, and what changed in a registration."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from tidemill.coordination.image import BrokerImage

logger = logging.getLogger(__name__)


def log_broker_changes(
    before: Mapping[int, BrokerImage], living: Mapping[int, BrokerImage], registered: Sequence[int]
) -> None:
    """Logs how the live brokers differ from those ``before``; ``registered`` have a new registration."""
    log_membership(registered, [one for one in before if one not in living], living)
    for broker, now in living.items():
        known = before.get(broker)
        if known is None or broker in registered:
            continue
        if known.endpoints != now.endpoints:
            listed = ", ".join(f"{one.listener}://{one.host}:{one.port}" for one in now.endpoints.values())
            logger.info("broker %d changed its endpoints to %s", broker, listed)
        if known.lost != now.lost:
            logger.debug("broker %d changed the lost replicas in its registration", broker)


def log_former_controller(known: Collection[int], living: Collection[int]) -> None:
    """Logs how the live brokers differ from those that a new controller knew from the former one."""
    if known:  # Otherwise this is its first controller, or this broker was started just now.
        log_membership(
            [one for one in living if one not in known], [one for one in known if one not in living], living
        )


def log_membership(registered: Sequence[int], gone: Sequence[int], living: Collection[int]) -> None:
    """One line at INFO; none where nobody came or went."""
    if registered or gone:
        logger.info(
            "brokers registered: %s, brokers gone: %s; live brokers: %s", registered, gone, sorted(living)
        )
