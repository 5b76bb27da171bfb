"""Decides whether a query of a mirror that has failed is started again.

Spark has the errors of tasks only as text: their class, and the names of error codes.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from tidemill.client.errors import ClientError
from tidemill.model.errors import RETRIABLE, ErrorCode
from tidemill.pipeline.spark_errors import TIDEMILL_ERROR

CODE: Final = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b")

OUTAGES: Final = frozenset(
    {
        "BrokerUnreachable",
        "ConnectionAttemptPending",
        "RequestTimeout",
        "DeliveryTimeout",
        "BufferFull",
        "ClientClosed",
        "TransactionsAborted",
        "RowsLost",
        "OutcomeUnknown",
    }
)
"""Errors that end with an outage, or that the next attempt handles."""
TRANSACTION_ERRORS: Final = frozenset(
    {"AbortableTransactionError", "FatalTransactionError", "ProducerFenced"}
)
FATAL: Final = frozenset(
    {
        "MirrorDataLoss",
        "AuthenticationFailed",
        "ConfigError",
        "BadPosition",
        "BadSyncPoints",
        "InvalidRecord",
        "RowsDiffer",
        "ControlRecordsLost",
        "BatchesOutOfOrder",
        "ControlRecordError",
    }
)
"""Errors that an operator is to handle."""


WORKER_LOST: Final = re.compile(
    r"Python worker (?:failed to connect back|exited unexpectedly)"
    r"|Timed out while waiting for the Python worker to connect back"
    r"|Python (?:daemon )?failed to launch worker"
)
"""Spark's texts for a Python process that was killed, or that has not started in time on a loaded machine."""


class Verdict(Enum):
    """What follows from a failure."""

    WAIT = "an outage: the query is started again until it continues"
    COUNT = "unknown: the query is started again a few times"
    END = "the mirror ends with this error"


def verdict_on(problem: BaseException) -> Verdict:
    """Judges the failure of a query by the last error of this package in its text."""
    if isinstance(problem, ClientError):
        return _verdict(type(problem).__name__, str(problem), problem.code)
    found = TIDEMILL_ERROR.findall(str(problem))
    if not found:
        if isinstance(problem, (ConnectionError, TimeoutError)):
            return Verdict.WAIT
        name = type(problem).__name__
        return Verdict.END if name in FATAL else Verdict.COUNT
    name, text = found[-1]
    return _verdict(name, text, None)


def verdict_on_copy(problem: BaseException) -> Verdict:
    """Judges the failure of a query with the same offsets, whose tasks and plans wait for outages."""
    return Verdict.END if TIDEMILL_ERROR.search(str(problem)) else Verdict.COUNT


def verdict_on_start(problem: BaseException) -> Verdict:
    """Judges an error of the start of a query."""
    return Verdict.COUNT if has_lost_worker(problem) else Verdict.END


def has_lost_worker(problem: BaseException) -> bool:
    """Whether Spark has lost a Python process, or has not waited for its start."""
    return WORKER_LOST.search(str(problem)) is not None


def _verdict(name: str, text: str, code: ErrorCode | None) -> Verdict:
    if name in FATAL:
        return Verdict.END
    if name in OUTAGES:
        return Verdict.WAIT
    if name in ("DataLoss", "TopicRecreated"):
        # Found by a task: the next plan tells whether a topic was deleted, or records were lost.
        return Verdict.COUNT
    codes = {code} if code is not None else {ErrorCode[one] for one in CODE.findall(text) if one in _CODES}
    if codes & RETRIABLE or (name in TRANSACTION_ERRORS and not codes):
        return Verdict.WAIT
    return Verdict.END if name == "ClientError" and codes else Verdict.COUNT


_CODES: Final = frozenset(ErrorCode.__members__)
