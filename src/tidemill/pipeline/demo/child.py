"""``python -m tidemill.pipeline.demo.child ARGUMENTS``: a tidemill command that ends with its parent.

The parent holds the other end of standard input. When the parent ends, however it ends, standard input ends
too. This process then kills its process group, which includes Spark's JVM. It must therefore lead its own
process group (``start_new_session``).
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
        raise RuntimeError(
            "the process does not lead its own process group: start it with start_new_session=True"
        )
    threading.Thread(target=watch, name="end-with-input", daemon=True).start()


if __name__ == "__main__":
    end_with_input()
    sys.argv[0] = "tidemill"
    runpy.run_module("tidemill", run_name="__main__", alter_sys=False)
