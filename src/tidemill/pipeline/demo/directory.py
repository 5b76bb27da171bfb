"""The demo's folder: it belongs to one run at a time, and is emptied when that run begins.

The marker file tells a folder of the demo from one of somebody else. It is also what a run locks, for as
long as its process lives: the system gives the lock back however the process ends, so a lock that is held
means a run that is under way, never one that was killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill.model.errors import ConfigError, TidemillError
from tidemill.pipeline.demo.broker import stop_leftover

MARKER = ".tidemill-demo"
DIRECTORY_VARIABLE = "TIDEMILL_DEMO_DIRECTORY"
ANOTHER = f"give another folder: make run {DIRECTORY_VARIABLE}=FOLDER"

TEXT = "Made by `make run`, which removes everything in here when it starts. The run that has it:\npid {}\n"


class UnderWay(TidemillError):
    """Another run has the folder."""


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """The folder, made or emptied, for the time of a run.

    Raises UnderWay while another process has it, ConfigError for a folder of somebody else and for one
    that cannot be written.
    """
    marker = _open_marker(directory)
    try:
        _lock(marker, directory)
        stop_leftover(directory)
        _empty(directory)
        os.ftruncate(marker, 0)
        os.pwrite(marker, TEXT.format(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(marker)


def _open_marker(directory: Path) -> int:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()) and not (directory / MARKER).exists():
            raise ConfigError(
                f"{directory} has files and is no folder of an earlier demo: the demo starts clean and will "
                f"not remove them. Move them away, or {ANOTHER}"
            )
        return os.open(directory / MARKER, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as problem:
        raise _not_writable(directory, problem) from None


def _lock(marker: int, directory: Path) -> None:
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(marker, 4096, 0).decode(errors="replace").rpartition("pid ")[2].strip()
        shown = f"pid {owner}" if owner.isdigit() else "which has just begun"
        raise UnderWay(
            f"another make run ({shown}) is under way in {directory}: wait until it has ended, or {ANOTHER}"
        ) from None
    except OSError as problem:
        raise _not_writable(directory, problem) from None


def _empty(directory: Path) -> None:
    try:
        for path in directory.iterdir():
            if path.name == MARKER:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as problem:
        raise _not_writable(directory, problem) from None


def _not_writable(directory: Path, problem: OSError) -> ConfigError:
    where = problem.filename or directory
    reason = problem.strerror or problem
    return ConfigError(f"the demo cannot write to {directory} ({where}: {reason}): {ANOTHER}")
