"""The demo's folder: used by one run at a time, and emptied at the start of a run.

The marker file distinguishes the demo's folder from other folders. A run also locks it while its process
lives. The system releases the lock however the process ends, so a held lock means a run in progress, never a
killed run.
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
ANOTHER = f"set another folder: make run {DIRECTORY_VARIABLE}=FOLDER"

TEXT = "Made by `make run`, which removes everything in here when it starts. The run that has it:\npid {}\n"


class UnderWay(TidemillError):
    """Another run uses the folder."""


@contextmanager
def locked_directory(directory: Path) -> Iterator[None]:
    """Locks the folder for a run, after creating or emptying it.

    Raises UnderWay while another process holds the lock, ConfigError for a folder with other files and for
    one that cannot be written.
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
                f"{directory} has files and is not the folder of an earlier demo: the demo starts clean and "
                f"will not remove them. Move them away, or {ANOTHER}"
            )
        return os.open(directory / MARKER, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as problem:
        raise _not_writable(directory, problem) from None


def _lock(marker: int, directory: Path) -> None:
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(marker, 4096, 0).decode(errors="replace").rpartition("pid ")[2].strip()
        shown = f"pid {owner}" if owner.isdigit() else "which has just started"
        raise UnderWay(
            f"another make run ({shown}) is running in {directory}: wait until it has ended, or {ANOTHER}"
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
