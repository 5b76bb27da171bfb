"""The error codes that clients get for errors of the coordination store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidemill.coordination.coordination_store import BadVersion, NodeExists, NoNode, StoreError
from tidemill.coordination.nodes import CONTROLLER_EPOCH
from tidemill.model.errors import ErrorCode, KafkaError

Codes = Mapping[type[Exception], ErrorCode]

CODES: Final[Codes] = {
    BadVersion: ErrorCode.UNKNOWN_SERVER_ERROR,
    NodeExists: ErrorCode.UNKNOWN_SERVER_ERROR,
    NoNode: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    StoreError: ErrorCode.KAFKA_STORAGE_ERROR,
    ValueError: ErrorCode.INVALID_REQUEST,
}
"""The codes by the class of the error. A class that is not listed has the code of its nearest superclass.

BadVersion and NodeExists are conflicts with another client of the store. KAFKA_STORAGE_ERROR is the only code
that clients repeat. ValueError: a node cannot be encoded.
"""
TOPIC_CODES: Final[Codes] = {**CODES, NodeExists: ErrorCode.TOPIC_ALREADY_EXISTS}
"""For the nodes of topics: CreateTopics requires the code of a topic that another client has created."""
PRODUCER_ID_CODES: Final[Codes] = {StoreError: ErrorCode.COORDINATOR_NOT_AVAILABLE}
"""For InitProducerId: producers repeat the request after the errors of a coordinator."""


def wire_error(problem: StoreError | KafkaError | ValueError, codes: Codes = CODES) -> KafkaError:
    """Returns the error that a client gets for ``problem``: itself, if it is no error of the store.

    A fenced write has NOT_CONTROLLER in every API.
    """
    if isinstance(problem, BadVersion) and problem.path == CONTROLLER_EPOCH:
        return controller_replaced()
    if isinstance(problem, KafkaError) and not isinstance(problem, StoreError):
        return problem
    code = next(codes[kind] for kind in type(problem).__mro__ if kind in codes)
    step = ". Try again." if code == ErrorCode.UNKNOWN_SERVER_ERROR else ""
    return KafkaError(f"{problem}{step}", code)


def controller_replaced() -> KafkaError:
    """Returns the error for a command to a controller that another broker has replaced."""
    return KafkaError("another broker has become the controller", ErrorCode.NOT_CONTROLLER)
