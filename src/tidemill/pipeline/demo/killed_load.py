"""The first run of the load: a separate process, killed during a micro-batch."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tidemill.log.system_files import SystemFiles
from tidemill.model.errors import TidemillError
from tidemill.pipeline.jobs.earlier_loads import batches_in
from tidemill.pipeline.jobs.load_manifest import STAGING
from tidemill.pipeline.jobs.table_folder import read_manifest

WAIT_SECONDS_MAX = 600.0
FILES_BEFORE_KILL = 10
"""The number of staged files of the batch at which the load is killed, in the middle of its work."""


class KilledLoad(NamedTuple):
    """The batches that were in the table before the kill, and the planned batch that was not.

    ``staged`` files of the latter were written; no reader ever sees them.
    """

    committed: tuple[int, ...]
    interrupted: int | None
    seconds: float
    staged: int


class LoadFailed(TidemillError):
    """The load ended before it could be killed."""


def load_and_kill(
    command_options: list[str],
    table: Path,
    checkpoint: Path,
    log_path: Path,
    batch: int,
    on_wait: Callable[[str], None],
) -> KilledLoad:
    """Runs ``tidemill pipeline load`` and kills it, with SIGKILL, during ``batch``.

    A load that ends before is not an error if it has loaded everything: then nothing was interrupted.
    """
    began_s = time.monotonic()
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidemill.pipeline.demo.child", "pipeline", "load", *command_options],
            stdin=subprocess.PIPE,  # ends with this process; the child then kills itself
            stdout=log,
            stderr=log,
            start_new_session=True,  # the JVM is in the same process group, and is killed with it
        )
    try:
        _wait_for(checkpoint / "offsets" / str(batch), process, log_path, on_wait, checkpoint)
        _wait_for_files(checkpoint, batch, process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
    manifest = read_manifest(SystemFiles(), str(table))
    loaded = {manifest.batch} if manifest is not None else set()
    planned = batches_in(checkpoint / "offsets")
    done = batches_in(checkpoint / "commits")
    committed = [number for number in planned if number in loaded or number in done]
    open_batches = [number for number in planned if number not in committed]
    return KilledLoad(
        tuple(committed),
        open_batches[0] if open_batches else None,
        time.monotonic() - began_s,
        len(staged_files(checkpoint)) if open_batches else 0,
    )


def staged_files(checkpoint: Path) -> list[Path]:
    """Returns Parquet files that a micro-batch has written and not yet moved into the table."""
    return list((checkpoint / STAGING).rglob("*.parquet"))


def _wait_for_files(checkpoint: Path, batch: int, process: subprocess.Popen[bytes]) -> None:
    """Returns when the batch has written some files, or has ended."""
    committed = checkpoint / "commits" / str(batch)
    deadline_s = time.monotonic() + WAIT_SECONDS_MAX
    while not committed.exists() and process.poll() is None and time.monotonic() < deadline_s:
        if len(staged_files(checkpoint)) >= FILES_BEFORE_KILL:
            return
        time.sleep(0.01)


def _wait_for(
    path: Path,
    process: subprocess.Popen[bytes],
    log_path: Path,
    on_wait: Callable[[str], None],
    checkpoint: Path,
) -> None:
    deadline_s = time.monotonic() + WAIT_SECONDS_MAX
    while not path.exists():
        if process.poll() is not None:
            if process.returncode == 0:
                return
            end = log_path.read_text(errors="replace").strip().splitlines()[-15:]
            raise LoadFailed("the load ended with code {}:\n{}".format(process.returncode, "\n".join(end)))
        if time.monotonic() > deadline_s:
            raise LoadFailed(f"the load did not write {path} within {WAIT_SECONDS_MAX:.0f} s; see {log_path}")
        on_wait(f"{len(batches_in(checkpoint / 'commits'))} micro-batches committed")
        time.sleep(0.01)
