"""Which errors of a cluster are outages, and when a mirror waits because of one."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

from tidemill.client.errors import ClientError, DataLoss
from tidemill.client.wait_reasons import Wait

logger = logging.getLogger("tidemill.pipeline")

PAUSE_S: Final = 1.0
REPORT_AFTER_S: Final = 7.0
"""How long a cluster has not answered when this is logged: longer than the listing of offsets waits for the
leader of a partition, and shorter than a call is repeated (20 s)."""


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


class OutageReports:
    """Logs once that a mirror waits for a cluster, after some seconds, and that the cluster answers again."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._reasons: dict[str, str] = {}
        """The reason by the alias of each cluster that was reported."""
        self._reported_s = 0.0

    def update(self, waits: Mapping[str, Wait], measured_s: float, now_s: float) -> str:
        """Returns why the mirror waits; empty if it does not.

        ``waits`` has the oldest wait for each cluster that does not answer a request now, and ``measured_s``
        is the end of the last measurement that both clusters have answered; a broker that is down among
        others does not stop it. All times are monotonic.
        """
        if measured_s > self._reported_s:
            for cluster in self._reasons:
                logger.warning(
                    "the mirror of %s continues: the cluster %s answers again", self._alias, cluster
                )
            self._reasons = {}
        if now_s - measured_s < REPORT_AFTER_S:
            return ""
        for cluster, wait in waits.items():
            waited_s = now_s - wait.since
            if cluster not in self._reasons and waited_s >= REPORT_AFTER_S:
                reason = f"no answer of the cluster {cluster} for {waited_s:.0f} s: {wait.reason}"
                logger.warning("the mirror of %s waits: %s", self._alias, reason)
                self._reasons[cluster], self._reported_s = reason, now_s
        return next(iter(self._reasons.values()), "")
