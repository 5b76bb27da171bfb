"""The levels of this broker's loggers: the configs of the resource BROKER_LOGGER.

``root`` is the logger of the whole program. Changes are lost when the broker stops, as in Apache Kafka.
"""

from __future__ import annotations

import logging

from tidemill.controller.admin_manager import ConfigCommand
from tidemill.controller.configuration_control import AlterOperation, check_own_broker
from tidemill.model.errors import ErrorCode, KafkaError

ROOT = "root"
PROGRAM = "tidemill"
TRACE = 5
LEVELS = {
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


def levels() -> dict[str, str]:
    """Returns the effective level of each logger, ``root`` first."""
    names = sorted(name for name in logging.Logger.manager.loggerDict if name.startswith(f"{PROGRAM}."))
    return {ROOT: _level_name(PROGRAM), **{name: _level_name(name) for name in names}}


def _level_name(name: str) -> str:
    effective = logging.getLogger(name).getEffectiveLevel()
    return next((text for text, level in LEVELS.items() if effective <= level), "FATAL")


def alter(broker_id: int, command: ConfigCommand, validate_only: bool) -> None:
    """Sets or deletes levels. Raises KafkaError before the first change."""
    check_own_broker(command.name, broker_id)
    if command.alterations is None:
        raise KafkaError(
            "AlterConfigs would replace the levels of all loggers: use IncrementalAlterConfigs",
            ErrorCode.INVALID_REQUEST,
        )
    changes: dict[str, int] = {}
    known = levels()
    for name, operation, value in command.alterations:
        logger = PROGRAM if name == ROOT else name
        if logger != PROGRAM and logger not in known:
            raise KafkaError(f"there is no logger {name!r}", ErrorCode.INVALID_CONFIG)
        if operation == AlterOperation.DELETE:
            if name == ROOT:
                raise KafkaError("the level of the root logger cannot be deleted", ErrorCode.INVALID_REQUEST)
            changes[logger] = logging.NOTSET
        elif operation != AlterOperation.SET:
            raise KafkaError("a logger's level can only be set or deleted", ErrorCode.INVALID_REQUEST)
        elif value is None:
            raise KafkaError(f"{name} has no level", ErrorCode.INVALID_REQUEST)
        elif value.upper() not in LEVELS:
            raise KafkaError(
                f"{value!r} is no level for {name}: use one of {', '.join(LEVELS)}", ErrorCode.INVALID_CONFIG
            )
        else:
            changes[logger] = LEVELS[value.upper()]
    if not validate_only:
        for logger, level in changes.items():
            logging.getLogger(logger).setLevel(level)
