"""A load with a Spark of its own that kills itself, Java and all, at one step of a micro-batch.

``python tests/pipeline/killed_load.py BOOTSTRAP TOPIC FOLDER OPERATION PATH NUMBER``: before the call of
number NUMBER of OPERATION of the file port on a path that contains PATH. It has to lead a process group.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from tidemill.log.system_files import SystemFiles
from tidemill.pipeline.jobs import load as load_module
from tidemill.pipeline.jobs.load import LoadJob, load
from tidemill.pipeline.jobs.session import local_session


class KilledAtFiles(SystemFiles):
    """The system's files, with one call that kills the process group."""

    def __init__(self, operation: str, part: str, number: int) -> None:
        self.operation = operation
        self.part = part
        self.left = number

    def step(self, operation: str, paths: tuple[Any, ...]) -> None:
        """Called before every operation that a kill may precede."""
        if operation == self.operation and any(self.part in str(path) for path in paths):
            self.left -= 1
            if self.left == 0:
                os.killpg(os.getpgrp(), signal.SIGKILL)


def _checked(name: str) -> Callable[..., Any]:
    def call(self: KilledAtFiles, *arguments: Any) -> Any:
        self.step(name, arguments[:2] if name == "rename" else arguments[:1])
        return getattr(SystemFiles, name)(self, *arguments)

    return call


for _name in ("replace", "rename", "remove", "sync_directory", "make_directory"):
    setattr(KilledAtFiles, _name, _checked(_name))


def main(bootstrap: str, topic: str, folder: str, operation: str, part: str, number: str) -> None:
    """Loads the topic until the kill."""
    files = KilledAtFiles(operation, part, int(number))
    load_module.SystemFiles = lambda: files  # type: ignore[assignment, misc]
    if operation == "commit":
        commit = load_module.TableFolder.commit

        def killed_after(*arguments: Any) -> Any:
            commit(*arguments)
            os.killpg(os.getpgrp(), signal.SIGKILL)

        load_module.TableFolder.commit = killed_after  # type: ignore[assignment, method-assign]
    spark = local_session("killed load", master="local[1]")
    source = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    job = LoadJob(
        source=source,
        output=f"{folder}/out",
        checkpoint=f"{folder}/checkpoint",
        schema="n bigint",
        time_zone="UTC",
    )
    load(spark, job)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
