"""Functions that the configuration names as ``module:function``: deletion policies, replica selectors."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from tidemill.broker.broker import Broker
from tidemill.broker.replica_selector import RACK_AWARE, ReplicaSelector, rack_aware
from tidemill.log.log_config import LogConfig
from tidemill.log.retention import POLICIES, Policy, SegmentFacts
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ConfigError

logger = logging.getLogger("tidemill.log")

KEY = "log.deletion.policy.class"
SELECTOR_KEY = "replica.selector.class"
LOGGED_FAILURES_MAX = 20


def deletion_policies(config: BrokerConfig) -> tuple[Policy, ...]:
    """The deletion policies of this broker: the built-in ones, and the configured one. Raises ConfigError."""
    name = config.str(KEY)
    if not name:
        return POLICIES
    if ":" not in name:
        logger.warning("%s=%s has no effect: it is not a Python function (module:function)", KEY, name)
        return POLICIES
    return (*POLICIES, _CheckedPolicy(name, _load_function(KEY, name)))


def replica_selector(broker: Broker) -> ReplicaSelector | None:
    """The configured replica selector; None if consumers read from the leader. Raises ConfigError."""
    name = broker.config.str(SELECTOR_KEY)
    if not name:
        return None
    if name == RACK_AWARE:
        select = rack_aware
    elif ":" in name:
        select = _load_function(SELECTOR_KEY, name)
    else:
        logger.warning(
            "%s=%s has no effect: it is neither %s nor a Python function (module:function)",
            SELECTOR_KEY,
            name,
            RACK_AWARE,
        )
        return None
    return ReplicaSelector(name, select, lambda: broker.metadata_cache.brokers, broker.clock)


def _load_function(key: str, name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as problem:
        raise ConfigError(
            f"{key}={name} cannot be used: {problem}. Give a function as module:function, and add the "
            "directory of its module to PYTHONPATH."
        ) from None
    except Exception as problem:
        # The import of a foreign module may raise any exception.
        kind = type(problem).__name__
        raise ConfigError(
            f"{key}={name} cannot be used: importing {module_name} failed ({kind}: {problem}). Try it with "
            f"python -c 'import {module_name}'."
        ) from problem
    if not callable(found):
        raise ConfigError(
            f"{key}={name} cannot be used: it is of type {type(found).__name__}, not a function."
        )
    return found


class _CheckedPolicy:
    """A configured policy, which sees only the closed segments of logs with ``cleanup.policy=delete``.

    If it fails, it deletes nothing. Each kind of failure is logged once.
    """

    def __init__(self, name: str, policy: Policy) -> None:
        self._name = name
        self._policy = policy
        self._logged: set[str] = set()

    def __call__(
        self,
        segments: Sequence[SegmentFacts],
        log_bytes: int,
        start_offset: int,
        config: LogConfig,
        now_ms: int,
    ) -> Sequence[bool]:
        nothing = [False] * len(segments)
        # Compaction keeps the last value of every key. The active segment is never deleted by a policy.
        closed = tuple(segments)
        if closed and closed[-1].is_active:
            closed = closed[:-1]
        if not closed or not config.delete:
            return nothing
        try:
            results = [bool(one) for one in self._policy(closed, log_bytes, start_offset, config, now_ms)]
            if len(results) != len(closed):
                raise ValueError(f"the policy returned {len(results)} results for {len(closed)} segments")
        except (Exception, SystemExit) as problem:
            kind = f"{type(problem).__name__}: {problem}"
            if kind not in self._logged and len(self._logged) < LOGGED_FAILURES_MAX:
                self._logged.add(kind)
                logger.exception("the deletion policy %s failed; it deletes nothing", self._name)
            return nothing
        return results + nothing[len(results) :]
