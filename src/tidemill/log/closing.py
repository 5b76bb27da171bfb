"""Closes many logs: their syncs wait for the disk together, not one after the other.

A disk, and the journal of its file system, serves many syncs that come at once nearly as fast as one. The
logs themselves are touched by the caller's thread alone; only :meth:`FlushJob.run` goes to others.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final, NamedTuple

from tidemill.log.errors import may_pass, storage_error
from tidemill.log.flush import FlushJob
from tidemill.log.log import Log
from tidemill.log.open_files import OPEN_FILES, share_of_limit
from tidemill.model.errors import StorageError

THREADS: Final = 16
"""Syncs that wait at once, per data directory: enough for one commit of a journal to serve many."""
LOGS_AT_ONCE: Final = 32
"""Logs whose files are open at once: two for each thread, so that none of them waits for the next."""
DESCRIPTORS_A_LOG: Final = 2
DESCRIPTORS_A_THREAD: Final = 4
"""Of what logs leave to others, a log takes the file that it syncs, a thread the one that it opens; and as
much is left over."""


class Closed(NamedTuple):
    """What did not work, in texts; ``sync_failed``: the system may have dropped what was to be written."""

    problems: list[str]
    sync_failed: bool


def close_logs(logs: Iterable[Log], now_ms: int, callers: int = 1) -> Closed:
    """Closes all that can be closed; a start has to recover the others.

    ``callers``: so many threads of the process close logs at once, and share its descriptors.
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
                    sync_failed = sync_failed or not may_pass(problem)
                elif not isinstance(job, Failed):
                    log.finish_close(job, now_ms)
    return Closed(problems, sync_failed)


class Failed:
    """In the place of the job of a log that could not even be made ready."""


def _begin(log: Log, problems: list[str]) -> FlushJob | Failed | None:
    try:
        job = _make_job(log)
    except OSError as problem:
        problems.append(str(storage_error("close", log.directory, problem)))
    except StorageError as problem:
        problems.append(str(problem))
    else:
        if job is not None:
            job.sync_parent = False  # the caller syncs it once for all
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
    """Syncs; what went wrong, or nothing."""
    if isinstance(job, FlushJob):
        try:
            job.run()
        except StorageError as problem:
            return problem
    return None
