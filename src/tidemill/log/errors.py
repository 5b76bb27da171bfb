"""Storage errors whose text names the path, the system's reason and what to do next."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from tidemill.model.errors import ErrorCode, KafkaError, StorageError

_NEXT_STEPS = {
    errno.ENOSPC: "free or add space; a running broker goes on reading, and writes again once there is room",
    errno.EDQUOT: "raise the quota or delete data; a running broker writes again once there is room",
    errno.EMFILE: "raise the limit of open files of this process (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files (fs.file-max)",
    errno.EACCES: "give the broker's user read and write rights to it",
    errno.EPERM: "give the broker's user read and write rights to it",
    errno.EROFS: "mount the file system read-write",
    errno.ENOTDIR: "there is a file where a directory should be: name another directory, or move the file",
    errno.EEXIST: "there is a file where a directory should be: name another directory, or move the file",
    errno.EIO: "look for disk faults in the kernel's log; move the directory's partitions to a good disk",
    errno.ENOENT: "it is not there: make it or bring it back, and restart the broker, which then takes stock",
}


_BROKEN = frozenset({errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ENOTCONN})
"""What a disk answers that is broken, gone or remounted, and a file server that is."""

_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class DiskFull(StorageError):
    """There is no room for a write to ``path``. What is stored stays readable, a later write may succeed."""

    path = ""


class OffsetOutOfRange(KafkaError):
    """An offset that the log does not hold: before its start or after its end."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


def storage_error(doing: str, path: str, problem: OSError) -> StorageError:
    """The storage error for ``problem``, met while ``doing`` something (an infinitive) with ``path``."""
    number = problem.errno or 0
    step = _NEXT_STEPS.get(number, "see the kernel's log and the state of the disk")
    text = f"cannot {doing} {path}: {problem.strerror or problem}; {step}"
    if is_disk_full(problem):
        full = DiskFull(text)
        full.path = path
        return full
    error = StorageError(text)
    error.number = number
    return error


def is_disk_full(problem: OSError) -> bool:
    """Whether there was no room for a write."""
    return problem.errno in (errno.ENOSPC, errno.EDQUOT)


def is_disk_broken(problem: KafkaError) -> bool:
    """Whether the disk itself is at fault: nothing else in its directory can be relied on either."""
    return isinstance(problem, StorageError) and problem.number in _BROKEN


def may_pass(problem: StorageError) -> bool:
    """Whether the process was short of something (descriptors, memory) and the disk is not at fault."""
    return problem.number in _PASSING


PARTITIONS_NAMED_MAX = 20
"""Of more partitions that cannot be had the rest is counted."""


def failure_of(topic: str, failures: Mapping[int, KafkaError]) -> KafkaError:
    """One error for all partitions of a topic that have no log here: which, and why the first has none."""
    first = failures[min(failures)]
    if len(failures) == 1:
        return first
    named = ", ".join(map(str, sorted(failures)[:PARTITIONS_NAMED_MAX]))
    more = f" and {len(failures) - PARTITIONS_NAMED_MAX} more" if len(failures) > PARTITIONS_NAMED_MAX else ""
    text = f"partitions {named}{more} of {topic} have no log here; {min(failures)}: {first}"
    error = type(first)(text, first.code)
    if isinstance(first, StorageError) and isinstance(error, StorageError):
        error.number = first.number
    return error
