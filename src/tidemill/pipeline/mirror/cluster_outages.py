"""Which errors of a cluster are outages, and when a mirror waits because of one."""

from __future__ import annotations

import logging
import time
from typing import Final

from tidemill.client.errors import ClientError, DataLoss

logger = logging.getLogger("tidemill.pipeline")

PAUSE_S: Final = 1.0


def is_outage(problem: BaseException) -> bool:
    """Whether another attempt may succeed without a change by an operator."""
    if isinstance(problem, ClientError):
        return problem.retriable and not isinstance(problem, DataLoss)
    return isinstance(problem, OSError)


class Outages:
    """The outages of one process, each of which is logged once."""

    def __init__(self) -> None:
        self._reason = ""

    def wait(self, problem: ClientError | OSError) -> None:
        """Logs the start of an outage, and waits. Raises an error that no wait would end."""
        if not is_outage(problem):
            raise problem
        if not self._reason:
            self._reason = str(problem)
            logger.warning("the mirror waits: %s", problem)
        time.sleep(PAUSE_S)

    def end(self) -> None:
        """Logs the end of an outage, if there was one."""
        if self._reason:
            logger.warning("the mirror continues; it waited because: %s", self._reason)
            self._reason = ""
