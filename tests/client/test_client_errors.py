"""The texts of client errors: operation, code, broker and next step."""

from __future__ import annotations

import pytest

from tidemill import client
from tidemill.client import errors
from tidemill.client.errors import check, error_for, topic_exists
from tidemill.model.errors import ConfigError, ErrorCode


@pytest.mark.parametrize("number", [3, int("3"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
def test_a_known_code_is_shown_by_name(number: int) -> None:
    error = error_for(number, "read t-0", broker="b:1", topic="t", partition=0, step="look again")
    assert str(error) == "cannot read t-0: UNKNOWN_TOPIC_OR_PARTITION, broker b:1; look again"
    assert (error.code, error.broker, error.topic, error.partition) == (3, "b:1", "t", 0)


def test_a_code_that_the_detail_repeats_is_shown_once() -> None:
    error = error_for(47, "write", detail="t-0 is old (INVALID_PRODUCER_EPOCH).", step="x")
    assert str(error) == "cannot write: INVALID_PRODUCER_EPOCH (t-0 is old); x"


def test_every_code_is_shown_by_its_name_alone() -> None:
    for code in ErrorCode:
        plain = int(str(int(code)))
        assert str(error_for(plain, "do it", step="x")) == f"cannot do it: {code.name}; x"


def test_a_code_of_a_newer_broker_is_shown_by_number() -> None:
    assert ErrorCode.of(9_999) == ErrorCode.UNKNOWN_SERVER_ERROR
    error = error_for(9_999, "read t-0", detail="it is new.", step="update")
    assert str(error) == "cannot read t-0: UNKNOWN_SERVER_ERROR (code 9999) (it is new); update"


def test_only_an_error_code_raises_an_error() -> None:
    check(0, "do it")
    with pytest.raises(Exception, match="cannot do it: UNKNOWN_SERVER_ERROR"):
        check(-1, "do it")


@pytest.mark.parametrize(
    ("number", "detail", "there"),
    [
        (ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 't' already exists.", True),
        (ErrorCode.TOPIC_ALREADY_EXISTS, "topic t is still being deleted", False),
        (ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 't' is marked for deletion.", False),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, "Topic 't' already exists.", False),
    ],
)
def test_an_existing_topic_is_usable_unless_it_is_being_deleted(
    number: int, detail: str, there: bool
) -> None:
    error = error_for(number, "create topic t", detail=detail)
    assert topic_exists(error) is there


def test_the_errors_of_the_documentation_are_public() -> None:
    assert client.RequestTimeout is errors.RequestTimeout
    assert client.ClientClosed is errors.ClientClosed
    assert client.ConfigError is ConfigError
    for name in client.__all__:
        assert getattr(client, name).__name__ == name
