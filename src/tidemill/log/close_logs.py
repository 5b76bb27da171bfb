"""Closes many logs and runs their syncs in parallel.

A disk and the journal of its file system serve many simultaneous syncs nearly as fast as one. Only the
calling thread accesses the logs; other threads run :meth:`FlushJob.run`.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, NamedTuple

from tidemill.log.errors import is_transient, storage_error
from tidemill.log.flush_job import FlushJob
from tidemill.log.log import Log
from tidemill.log.open_files import OPEN_FILES, share_of_limit
from tidemill.model.errors import StorageError

THREADS: Final = 16
"""Simultaneous syncs per data directory: enough that one journal commit serves many of them."""
LOGS_AT_ONCE: Final = 32
"""Logs whose files are open at once: two per thread, so that no thread waits for the next log."""
DESCRIPTORS_A_LOG: Final = 2
DESCRIPTORS_A_THREAD: Final = 4
"""Of the descriptors that open logs leave free, a log uses one for the file that it syncs, and a thread one
for the file that it opens; the same number stays in reserve.
"""


class Closed(NamedTuple):
    """The problems, as texts. ``sync_failed``: the system may have dropped unwritten data."""

    problems: list[str]
    sync_failed: bool


def close_logs(logs: Iterable[Log], now_ms: int, callers: int = 1) -> Closed:
    """Closes all logs that can be closed; the next start recovers the others.

    ``callers``: the number of threads that close logs at the same time and share the descriptors.
    """
    problems: list[str] = []
    sync_failed = False
    left = iter(logs)
    spare = share_of_limit() // max(1, callers)
    at_once = max(1, min(LOGS_AT_ONCE, spare // DESCRIPTORS_A_LOG))
    threads = max(1, min(THREADS, spare // DESCRIPTORS_A_THREAD))
    with ThreadPoolExecutor(threads, thread_name_prefix="close-sync") as pool:
        while some := list(islice(left, at_once)):
            jobs = [(log, _begin(log, problems)) for log in some]
            ended = pool.map(_run, [job for _, job in jobs])
            for (log, job), problem in zip(jobs, ended, strict=True):
                if problem is not None:
                    problems.append(str(problem))
                    sync_failed = sync_failed or not is_transient(problem)
                elif not isinstance(job, Failed):
                    log.finish_close(job, now_ms)
    return Closed(problems, sync_failed)


class Failed:
    """Replaces the job of a log that could not be prepared."""


def _begin(log: Log, problems: list[str]) -> FlushJob | Failed | None:
    try:
        job = _make_job(log)
    except OSError as problem:
        problems.append(str(storage_error("close", log.directory, problem)))
    except StorageError as problem:
        problems.append(str(problem))
    else:
        return job
    return Failed()


def _make_job(log: Log) -> FlushJob | None:
    try:
        return log.begin_close()
    except StorageError as problem:
        if not OPEN_FILES.make_room(OSError(problem.number, str(problem))):
            raise
    return log.begin_close()


def _run(job: FlushJob | Failed | None) -> StorageError | None:
    """Syncs one log. Returns the error, or None."""
    if isinstance(job, FlushJob):
        try:
            job.run(with_parent=False)  # The caller syncs it once for all logs.
        except StorageError as problem:
            return problem
    return None
