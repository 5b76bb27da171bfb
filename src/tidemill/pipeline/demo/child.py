"""``python -m tidemill.pipeline.demo.child ARGUMENTS``: a tidemill command that does not outlive its starter.

The starter holds the other end of standard input. When that ends, because the starter did, however it did,
this process and all that it started (Spark's JVM) are killed. For that it has to lead a process group of
its own (``start_new_session``).
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def end_with_input() -> None:
    """Kills the process group when standard input ends."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.killpg(os.getpgrp(), signal.SIGKILL)

    if os.getpgrp() != os.getpid():
        raise RuntimeError("the process leads no group of its own: start it with start_new_session=True")
    threading.Thread(target=watch, name="end-with-input", daemon=True).start()


if __name__ == "__main__":
    end_with_input()
    sys.argv[0] = "tidemill"
    runpy.run_module("tidemill", run_name="__main__", alter_sys=False)
