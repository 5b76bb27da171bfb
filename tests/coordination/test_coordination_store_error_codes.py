"""The error codes of the store's errors."""

from __future__ import annotations

import pytest

from tidemill.coordination.coordination_store import (
    BadVersion,
    NoAccess,
    NodeExists,
    NoNode,
    SessionExpired,
    StoreError,
    StoreUnavailable,
)
from tidemill.coordination.nodes import CONTROLLER_EPOCH
from tidemill.coordination.store_error_codes import CODES, PRODUCER_ID_CODES, TOPIC_CODES, Codes, wire_error
from tidemill.model.errors import ErrorCode, KafkaError


@pytest.mark.parametrize(
    ("problem", "codes", "code", "text"),
    [
        (BadVersion("/a"), CODES, ErrorCode.UNKNOWN_SERVER_ERROR, "than expected. Try again."),
        (NodeExists("/a"), CODES, ErrorCode.UNKNOWN_SERVER_ERROR, "/a exists. Try again."),
        (NodeExists("/a"), TOPIC_CODES, ErrorCode.TOPIC_ALREADY_EXISTS, "/a exists"),
        (NoNode("/a"), CODES, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "/a does not exist"),
        (NoAccess("/a"), CODES, ErrorCode.KAFKA_STORAGE_ERROR, "is not open to this login"),
        (SessionExpired("it ended"), CODES, ErrorCode.KAFKA_STORAGE_ERROR, "it ended"),
        (StoreUnavailable("no answer"), PRODUCER_ID_CODES, ErrorCode.COORDINATOR_NOT_AVAILABLE, "no answer"),
        (StoreError("damaged"), PRODUCER_ID_CODES, ErrorCode.COORDINATOR_NOT_AVAILABLE, "damaged"),
        (ValueError("a lone surrogate"), CODES, ErrorCode.INVALID_REQUEST, "a lone surrogate"),
        (BadVersion(CONTROLLER_EPOCH), TOPIC_CODES, ErrorCode.NOT_CONTROLLER, "another broker"),
    ],
)
def test_the_class_of_an_error_determines_its_code(
    problem: StoreError | ValueError, codes: Codes, code: ErrorCode, text: str
) -> None:
    error = wire_error(problem, codes)
    assert error.code == code
    assert text in str(error)


def test_an_error_without_the_store_is_unchanged() -> None:
    problem = KafkaError("the broker is live", ErrorCode.INVALID_REQUEST)
    assert wire_error(problem) is problem
