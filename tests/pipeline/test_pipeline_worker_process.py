"""The state that a task leaves in a Python worker process of Spark; each test runs a separate process."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

WORKER = """
import gc, importlib, importlib.machinery, os, sys, zipimport
sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec("pyspark.daemon", None)
"""
"""A main module by the name of PySpark's daemon."""
TASK = """
from tidemill.pipeline.worker_process import prepare_for_next_task as end_task
sys.path.append(sys.argv[1])
import within
def zip_importers():
    return [one for one in sys.path_importer_cache.values() if isinstance(one, zipimport.zipimporter)]
"""


def output_of(script: str, directory: Path) -> str:
    """Returns the output of a script that may import ``within`` and ``further`` from a zip file."""
    archive = directory / "modules.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("within.py", "NAME = 'within'\n")
        file.writestr("further.py", "NAME = 'further'\n")
    command = [sys.executable, "-c", script, str(archive)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_a_task_leaves_no_zip_file_whose_directory_the_next_task_reads_again(tmp_path: Path) -> None:
    script = WORKER + TASK + "before = len(zip_importers()); end_task(); print(before, len(zip_importers()))"
    assert output_of(script, tmp_path) == "1 0"


def test_a_later_task_still_imports_from_the_zip_file(tmp_path: Path) -> None:
    script = WORKER + TASK + "end_task(); importlib.invalidate_caches(); import further; print(further.NAME)"
    assert output_of(script, tmp_path) == "further"


def test_from_the_second_task_on_the_collector_does_not_visit_the_imported_modules(tmp_path: Path) -> None:
    script = WORKER + TASK
    script += (
        "end_task(); first = gc.get_freeze_count(); end_task(); second = gc.get_freeze_count(); end_task()\n"
    )
    script += "print(first, second > 1000, gc.get_freeze_count() <= second)"
    assert output_of(script, tmp_path) == "0 True True"


def test_garbage_of_the_first_tasks_is_collected_before_the_freeze(tmp_path: Path) -> None:
    script = WORKER + TASK + "import weakref\nclass Knot: pass\n"
    script += "knot = Knot(); knot.itself = knot; seen = weakref.ref(knot); gc.disable(); del knot\n"
    script += "end_task(); end_task(); print(seen())"
    assert output_of(script, tmp_path) == "None"


def test_a_forked_worker_counts_its_own_tasks(tmp_path: Path) -> None:
    script = WORKER + TASK + "end_task()\n"
    script += "if os.fork() == 0:\n end_task(); print(gc.get_freeze_count(), flush=True); os._exit(0)\n"
    script += "os.wait()"
    assert output_of(script, tmp_path) == "0"


def test_a_process_other_than_a_worker_of_spark_is_unchanged(tmp_path: Path) -> None:
    script = "import gc, sys, zipimport\n" + TASK
    script += "end_task(); end_task(); print(len(zip_importers()), gc.get_freeze_count())"
    assert output_of(script, tmp_path) == "1 0"
