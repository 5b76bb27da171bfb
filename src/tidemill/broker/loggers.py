"""The levels of this broker's loggers, as the protocol's "broker logger" resource shows and changes them.

``root`` is the logger of the whole program. Changes hold until the broker stops, as in Apache Kafka.
"""

from __future__ import annotations

import logging

from tidemill.controller.configs import AlterOperation, check_own_broker
from tidemill.controller.shell import ConfigCommand
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
    """The level that holds, by logger; ``root`` first."""
    names = sorted(name for name in logging.Logger.manager.loggerDict if name.startswith(f"{PROGRAM}."))
    return {ROOT: _level_name(PROGRAM), **{name: _level_name(name) for name in names}}


def _level_name(name: str) -> str:
    effective = logging.getLogger(name).getEffectiveLevel()
    return next((text for text, level in LEVELS.items() if effective <= level), "FATAL")


def alter(broker_id: int, command: ConfigCommand, validate_only: bool) -> None:
    """Sets levels, or takes them back; KafkaError before anything is changed."""
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
                raise KafkaError(
                    "the level of the root logger cannot be taken away", ErrorCode.INVALID_REQUEST
                )
            changes[logger] = logging.NOTSET
        elif operation != AlterOperation.SET:
            raise KafkaError("a logger's level can be set or deleted only", ErrorCode.INVALID_REQUEST)
        elif value is None:
            raise KafkaError(f"{name} has no level", ErrorCode.INVALID_REQUEST)
        elif value.upper() not in LEVELS:
            raise KafkaError(
                f"{value!r} is no level for {name}: allowed is {', '.join(LEVELS)}", ErrorCode.INVALID_CONFIG
            )
        else:
            changes[logger] = LEVELS[value.upper()]
    if not validate_only:
        for logger, level in changes.items():
            logging.getLogger(logger).setLevel(level)
