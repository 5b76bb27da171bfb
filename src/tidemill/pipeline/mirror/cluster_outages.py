"""Notes when a mirror cannot continue, and when it does again."""

from __future__ import annotations

import logging
import time
from typing import Final

from tidemill.client.errors import ClientError, DataLoss

logger = logging.getLogger("tidemill.pipeline")

PAUSE_S: Final = 1.0


class Outages:
    """The outages of one process, each of which is logged once."""

    def __init__(self) -> None:
        self._reason = ""

    def wait(self, problem: ClientError | OSError) -> None:
        """Logs the start of an outage, and waits. Raises an error that no wait would end."""
        if isinstance(problem, DataLoss) or (isinstance(problem, ClientError) and not problem.retriable):
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
