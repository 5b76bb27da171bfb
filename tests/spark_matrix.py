"""Runs the tests of Spark with what ``make test`` does not: older PySpark, Apache Kafka, Spark's connector.

    python tests/spark_matrix.py [4.0 4.1 4.2 kafka connector kills]

==============  ===============================  =============
name            PySpark                          against
==============  ===============================  =============
4.0, 4.1, 4.2   the newest of that line          our broker
kafka           4.3, the one that is installed   Apache Kafka
connector       4.0.0, with the jars of Spark's  Apache Kafka
                own connector
kills           4.3, the one that is installed   our broker
``make test``   4.3, the one that is installed   our broker
==============  ===============================  =============

``connector`` runs each case of ``test_pipeline_spark_connector.py`` with our source and with Spark's own; all
others run it with ours alone. ``kills`` kills the job that loads a topic between any two steps. PySpark comes
from PyPI into ``build/``, Apache Kafka and the connector from Maven Central. Without arguments all are run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from peers import BUILD, Kafka, Peer  # noqa: E402 - the path comes first
from spark import VERSION, pyspark_and_jars  # noqa: E402

VERSIONS = ("4.0", "4.1", "4.2")
"""Supported lines that are older than the one that is installed."""
KAFKA = "kafka"
CONNECTOR = "connector"
KILLS = "kills"
CHOSEN = "not clients and not every"
"""The marks of the tests that run."""
TRANSACTIONS = ("transaction.state.log.replication.factor=1", "transaction.state.log.min.isr=1")
"""Settings with which a single broker serves transactions."""
COMPARED = "tests/pipeline/test_pipeline_spark_connector.py"
TESTS = [
    *(f"tests/pipeline/test_pipeline_spark_{part}.py" for part in ("batch", "stream", "write")),
    "tests/pipeline/test_pipeline_lag.py",
    COMPARED,
]


def pyspark(version: str) -> Path:
    """A directory with the newest PySpark of a line."""
    directory = BUILD / f"pyspark-{version}"
    done = directory / ".complete"
    if not done.exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(directory)]
        subprocess.run([*install, f"pyspark=={version}.*"], check=True)
        done.touch()
    return directory


def run(title: str, tests: Sequence[str] = TESTS, **variables: str) -> bool:
    """Whether all tests passed."""
    print(f"\n{title}", flush=True)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **variables}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", CHOSEN, *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def run_version(version: str) -> bool:
    """With a PySpark of this line, against our broker."""
    path = pyspark(version)
    found = next((one.version for one in metadata.distributions(name="pyspark", path=[str(path)])), version)
    return run(f"PySpark {found}, our broker", PYTHONPATH=f"{path}{os.pathsep}{ROOT / 'src'}")


def run_kafka() -> bool:
    """With the PySpark that is installed, against Apache Kafka."""
    with tempfile.TemporaryDirectory() as directory:
        peer: Peer = Kafka(Path(directory) / "data", TRANSACTIONS)
        with peer:
            return run(
                f"PySpark {metadata.version('pyspark')}, Apache Kafka", TIDEMILL_TEST_BOOTSTRAP=peer.bootstrap
            )


def run_connector() -> bool:
    """Case by case with Spark's own connector and with ours, against Apache Kafka."""
    found = pyspark_and_jars()
    with tempfile.TemporaryDirectory() as directory:
        peer: Peer = Kafka(Path(directory) / "data", TRANSACTIONS)
        with peer:
            return run(
                f"PySpark {VERSION} and its Kafka connector, Apache Kafka",
                [COMPARED],
                PYTHONPATH=found["PYTHONPATH"],
                TIDEMILL_SPARK_CONNECTOR_JARS=found["JARS"],
                TIDEMILL_TEST_BOOTSTRAP=peer.bootstrap,
            )


def run_kills() -> bool:
    """Loads that are killed, with the PySpark that is installed, against our broker."""
    title = f"PySpark {metadata.version('pyspark')}, loads that are killed"
    return run(title, ["tests/pipeline/test_pipeline_killed_loads.py"])


def run_one(name: str) -> bool:
    """Whether what has this name passed."""
    runs = {KAFKA: run_kafka, CONNECTOR: run_connector, KILLS: run_kills}
    return runs[name]() if name in runs else run_version(name)


def main(wanted: list[str]) -> int:
    """Exit code 1 if a test failed, 2 for a name that is not known."""
    known = (*VERSIONS, KAFKA, CONNECTOR, KILLS)
    names = wanted or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"{', '.join(unknown)}: choose from {', '.join(known)}", file=sys.stderr)
        return 2
    failed = [name for name in names if not run_one(name)]
    print("\nfailed: " + ", ".join(failed) if failed else "\nall passed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
