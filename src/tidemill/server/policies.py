"""Functions that the configuration names as ``module:function``: deletion policies, replica selectors."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from tidemill.broker.broker import Broker
from tidemill.broker.replica_selection import RACK_AWARE, ReplicaSelection, rack_aware
from tidemill.log.config import LogConfig
from tidemill.log.retention import POLICIES, Policy, SegmentFacts
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ConfigError

log = logging.getLogger("tidemill.log")

KEY = "log.deletion.policy.class"
SELECTOR_KEY = "replica.selector.class"
TOLD_MAX = 20


def policies_of(config: BrokerConfig) -> tuple[Policy, ...]:
    """The policies of this broker: the usual ones, and the one that is named. Raises ConfigError."""
    name = config.str(KEY)
    if not name:
        return POLICIES
    if ":" not in name:
        log.warning("%s=%s has no effect: it names no Python function (module:function)", KEY, name)
        return POLICIES
    return (*POLICIES, _Guarded(name, _found(KEY, name)))


def selection_of(broker: Broker) -> ReplicaSelection | None:
    """What chooses the replica that a consumer reads from; None: always the leader. Raises ConfigError."""
    name = broker.config.str(SELECTOR_KEY)
    if not name:
        return None
    if name == RACK_AWARE:
        select = rack_aware
    elif ":" in name:
        select = _found(SELECTOR_KEY, name)
    else:
        log.warning(
            "%s=%s has no effect: it is neither %s nor a Python function (module:function)",
            SELECTOR_KEY,
            name,
            RACK_AWARE,
        )
        return None
    return ReplicaSelection(name, select, lambda: broker.metadata.brokers, broker.clock)


def _found(key: str, name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as problem:
        raise ConfigError(
            f"{key}={name} cannot be used: {problem}. Name a function as module:function, and have its "
            "module where Python finds it (PYTHONPATH)."
        ) from None
    except Exception as problem:
        # Whatever a module of somebody else does when it is imported.
        kind = type(problem).__name__
        raise ConfigError(
            f"{key}={name} cannot be used: importing {module_name} failed ({kind}: {problem}). Try it with "
            f"python -c 'import {module_name}'."
        ) from problem
    if not callable(found):
        raise ConfigError(
            f"{key}={name} cannot be used: it is no function, but {type(found).__name__}. Name a function."
        )
    return found


class _Guarded:
    """Somebody else's policy, held to closed segments of logs that delete.

    When it goes wrong, nothing is deleted by it, and each way in which it does is told once.
    """

    def __init__(self, name: str, policy: Policy) -> None:
        self._name = name
        self._policy = policy
        self._told: set[str] = set()

    def __call__(
        self,
        segments: Sequence[SegmentFacts],
        log_bytes: int,
        start_offset: int,
        config: LogConfig,
        now_ms: int,
    ) -> Sequence[bool]:
        nothing = [False] * len(segments)
        # A compacted log keeps the last value of every key, and what is written to is nobody's to take.
        closed = tuple(segments)
        if closed and closed[-1].is_active:
            closed = closed[:-1]
        if not closed or not config.delete:
            return nothing
        try:
            answers = [bool(one) for one in self._policy(closed, log_bytes, start_offset, config, now_ms)]
            if len(answers) != len(closed):
                raise ValueError(f"{len(answers)} answers came for {len(closed)} segments")
        except (Exception, SystemExit) as problem:
            kind = f"{type(problem).__name__}: {problem}"
            if kind not in self._told and len(self._told) < TOLD_MAX:
                self._told.add(kind)
                log.exception("the deletion policy %s failed; it deletes nothing", self._name)
            return nothing
        return answers + nothing[len(answers) :]
