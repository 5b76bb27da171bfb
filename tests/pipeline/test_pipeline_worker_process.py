"""The state that a task leaves in a Python worker process of Spark; each test runs a separate process."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    ("script", "output"),
    [
        pytest.param(
            "before = len(zip_importers()); end_task(); print(before, len(zip_importers()))",
            "1 0",
            id="a task leaves no zip file whose directory the next task reads again",
        ),
        pytest.param(
            "end_task(); importlib.invalidate_caches(); import further; print(further.NAME)",
            "further",
            id="a later task still imports from the zip file",
        ),
        pytest.param(
            """
end_task(); first = gc.get_freeze_count(); end_task(); second = gc.get_freeze_count(); end_task()
print(first, second > 1000, gc.get_freeze_count() <= second)
""",
            "0 True True",
            id="from the second task on the collector does not visit the imported modules",
        ),
        pytest.param(
            """
import weakref
class Knot: pass
knot = Knot(); knot.itself = knot; seen = weakref.ref(knot); gc.disable(); del knot
end_task(); end_task(); print(seen())
""",
            "None",
            id="garbage of the first tasks is collected before the freeze",
        ),
        pytest.param(
            """
end_task()
if os.fork() == 0:
    end_task(); print(gc.get_freeze_count(), flush=True); os._exit(0)
os.wait()
""",
            "0",
            id="a forked worker counts its own tasks",
        ),
    ],
)
def test_tasks_of_a_worker_release_what_they_imported(tmp_path: Path, script: str, output: str) -> None:
    assert output_of(WORKER + TASK + script, tmp_path) == output


def test_a_process_other_than_a_worker_of_spark_is_unchanged(tmp_path: Path) -> None:
    script = "import gc, sys, zipimport\n" + TASK
    script += "end_task(); end_task(); print(len(zip_importers()), gc.get_freeze_count())"
    assert output_of(script, tmp_path) == "1 0"
