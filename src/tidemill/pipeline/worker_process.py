"""Reduces the overhead of small tasks in Spark's Python worker processes.

Spark runs many tasks in the same Python worker. Around each task PySpark does two things whose cost grows
with the loaded modules, not with the task:

- Before the task, PySpark before 4.2 calls ``importlib.invalidate_caches()``, and Python then reads the
directories of all zip files on the path again. Spark's own jar with thousands of entries is on it.
- After the task, ``pyspark.daemon`` calls ``gc.collect()``, which visits each object of the imported modules.

:func:`prepare_for_next_task` avoids the repeated reads and most of the visits. Without it a micro-batch of
100 rows took 0.9 s, and 0.15 s with Spark's own connector (``bench/spark_streams.py``).
"""

from __future__ import annotations

import gc
import itertools
import sys
import zipimport

from tidemill.pipeline.process_local import ProcessLocal

DAEMON = "pyspark.daemon"
"""The main module of the process that forks worker processes, and of the workers."""

_numbers = ProcessLocal(lambda: itertools.count(1))
"""The numbers of the tasks of this process."""


def prepare_for_next_task() -> None:
    """Prepares the worker process for its next task. Call it at the end of each task; never raises.

    Does nothing outside PySpark's daemon and the workers that it forks.
    """
    if getattr(sys.modules["__main__"].__spec__, "name", "") != DAEMON:
        return
    _forget_zip_importers()
    if next(_numbers.value) == 2:
        # The first task imports the modules; after the second, all permanent objects exist. Collect garbage
        # first: frozen objects are never collected.
        gc.collect()
        gc.freeze()


def _forget_zip_importers() -> None:
    """Removes the importers of zip files; the next import creates new ones.

    The directories of the files stay in memory, so the new importers do not read them again.
    """
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            sys.path_importer_cache.pop(path, None)
