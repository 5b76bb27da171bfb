"""Storage errors whose text names the path, the reason and the next step."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from tidemill.model.errors import ErrorCode, KafkaError, StorageError

_NEXT_STEPS = {
    errno.ENOSPC: "free or add space; a running broker serves reads, and writes again once there is space",
    errno.EDQUOT: "raise the quota or delete data; a running broker writes again once there is space",
    errno.EMFILE: "raise the limit of open files of this process (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files (fs.file-max)",
    errno.EACCES: "give the broker's user read and write rights to it",
    errno.EPERM: "give the broker's user read and write rights to it",
    errno.EROFS: "mount the file system read-write",
    errno.ENOTDIR: "a file exists in place of a directory: configure another directory, or move the file",
    errno.EEXIST: "a file exists in place of a directory: configure another directory, or move the file",
    errno.EIO: "check the kernel's log for disk faults; move the directory's partitions to a good disk",
    errno.ENOENT: "it does not exist: create or restore it, and restart the broker",
}


_BROKEN = frozenset({errno.EIO, errno.EROFS, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ENOTCONN})
"""The errors of a disk or file server that is broken, gone or remounted."""

_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class DiskFull(StorageError):
    """No space for a write to ``path``. Stored records stay readable; a later write may succeed."""

    path = ""


class OffsetOutOfRange(KafkaError):
    """An offset outside the log: before its start or after its end."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


def storage_error(doing: str, path: str, problem: OSError) -> StorageError:
    """Returns the storage error for ``problem``. ``doing`` is an infinitive: the failed operation on
    ``path``.
    """
    number = problem.errno or 0
    step = _NEXT_STEPS.get(number, "check the kernel's log and the state of the disk")
    text = f"cannot {doing} {path}: {problem.strerror or problem}; {step}"
    if is_disk_full(problem):
        full = DiskFull(text)
        full.path = path
        return full
    error = StorageError(text)
    error.number = number
    return error


class StorageErrors:
    """A context in which an OSError becomes the storage error of an operation: see :func:`storage_error`."""

    def __init__(self, doing: str, path: str) -> None:
        self.doing = doing
        self.path = path

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, problem: object, traceback: object) -> None:
        if isinstance(problem, OSError):
            raise storage_error(self.doing, self.path, problem) from problem


def is_disk_full(problem: OSError) -> bool:
    """Whether there was no space for a write."""
    return problem.errno in (errno.ENOSPC, errno.EDQUOT)


def is_disk_broken(problem: KafkaError) -> bool:
    """Whether the disk itself has failed, so that nothing else in its directory is reliable."""
    return isinstance(problem, StorageError) and problem.number in _BROKEN


def is_transient(problem: StorageError) -> bool:
    """Whether the process lacked a resource (descriptors, memory) and the disk is not at fault."""
    return problem.number in _PASSING


PARTITIONS_NAMED_MAX = 20
"""The number of partitions that an error names. It gives the number of the others."""


def topic_failure(topic: str, failures: Mapping[int, KafkaError]) -> KafkaError:
    """Returns one error for all partitions of a topic without a log here, with the reason for the first."""
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
