"""Keeps small tasks cheap in Spark's Python worker processes.

Spark gives one task after the other to the same Python worker. Around each task PySpark does two things whose
cost grows with what is loaded, not with what the task does:

- Before the task, PySpark before 4.2 calls ``importlib.invalidate_caches()``, and Python then reads the
  directories of all zip files on the path again. Spark's own jar with thousands of entries is on it.
- After the task, ``pyspark.daemon`` calls ``gc.collect()``, which visits each object of the imported modules.

:func:`prepare_for_next_task` leaves nothing to read again, and little to visit. Without it a micro-batch of
100 rows took 0.9 s, and 0.15 s with Spark's own connector (``bench/spark_streams.py``).
"""

from __future__ import annotations

import gc
import os
import sys
import zipimport

DAEMON = "pyspark.daemon"
"""The main module of a process that forks worker processes, and of these."""

_tasks = 0
_process = 0
"""The tasks that this process has ended. A worker that was forked from this one counts its own."""


def prepare_for_next_task() -> None:
    """Prepares the worker process for its next task. To be called at the end of each task; never raises.

    Outside of PySpark's daemon and the workers that it forks it does nothing.
    """
    global _tasks, _process
    if getattr(sys.modules["__main__"].__spec__, "name", "") != DAEMON:
        return
    if _process != os.getpid():
        _tasks, _process = 0, os.getpid()
    _tasks += 1
    _forget_zip_importers()
    if _tasks == 2:
        # The first task imports the modules, and the second finds all that stays. Garbage of before is taken
        # away first: frozen objects are never collected.
        gc.collect()
        gc.freeze()


def _forget_zip_importers() -> None:
    """Python makes a new importer of a zip file with the next import that looks there.

    The directory of the file stays in memory: the new importer does not read it again.
    """
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            sys.path_importer_cache.pop(path, None)
