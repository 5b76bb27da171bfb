"""Adds the right that is missing to the error of a request: brokers return only for which resource it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tidemill.client.errors import ClientError
from tidemill.model.errors import ErrorCode
from tidemill.pipeline.options import EXACTLY_ONCE

OF_TOPIC: Final = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
OF_TRANSACTIONAL_ID: Final = (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,)


@contextmanager
def needs(
    operation: str, *, topic: str = "", id_prefix: str = "", delivery: str = EXACTLY_ONCE
) -> Iterator[None]:
    """Adds to authorization errors that a delivery needs an operation on a topic, or on transactional ids.

    Without ``topic`` or ``id_prefix`` those errors stay as they are.
    """
    try:
        yield
    except ClientError as problem:
        if topic and problem.code in OF_TOPIC:
            resource = f"the topic {problem.topic or topic}"
        elif id_prefix and problem.code in OF_TRANSACTIONAL_ID:
            resource = f"the transactional ids that begin with {id_prefix}"
        else:
            raise
        raise ClientError(
            f"{problem}. delivery={delivery} needs the operation {operation} on {resource}",
            problem.code,
            broker=problem.broker,
            topic=problem.topic,
            partition=problem.partition,
        ) from problem
