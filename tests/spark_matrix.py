"""Runs the tests of Spark that ``make test`` omits: older PySpark, Apache Kafka, Spark's connector.

    python tests/spark_matrix.py [4.0 4.1 4.2 kafka connector kills mirrors]

==============  ===============================  =============
name            PySpark                          against
==============  ===============================  =============
4.0, 4.1, 4.2   the latest of the line           Tidemill
kafka           4.3, as installed                Apache Kafka
connector       4.0.0, with the jars of Spark's  Apache Kafka
                own connector
kills           4.3, as installed                Tidemill
mirrors         4.3, as installed                Tidemill
``make test``   4.3, as installed                Tidemill
==============  ===============================  =============

``connector`` runs each case of ``test_pipeline_spark_connector.py`` with the source of Tidemill and with that
of Spark; the others run it only with that of Tidemill. ``kills`` kills the load job between any two steps.
PySpark is installed from PyPI into ``build/``, Apache Kafka and the connector from Maven Central. Without
arguments all are run.
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
"""Supported versions older than the installed one."""
KAFKA = "kafka"
CONNECTOR = "connector"
KILLS = "kills"
MIRRORS = "mirrors"
MIRROR_TESTS = [f"tests/pipeline/test_mirror_{part}spark.py" for part in ("", "records_")]
CHOSEN = "not clients and not every"
"""The markers of the tests to run."""
TRANSACTIONS = ("transaction.state.log.replication.factor=1", "transaction.state.log.min.isr=1")
"""Settings of Apache Kafka for transactions on a single broker."""
COMPARED = "tests/pipeline/test_pipeline_spark_connector.py"
TESTS = [
    *(f"tests/pipeline/test_pipeline_spark_{part}.py" for part in ("batch", "stream", "write")),
    "tests/pipeline/test_pipeline_lag.py",
    "tests/pipeline/test_exactly_once_spark.py",
    COMPARED,
]


def pyspark(version: str) -> Path:
    """A directory with the latest PySpark of a version line."""
    directory = BUILD / f"pyspark-{version}"
    done = directory / ".complete"
    if not done.exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(directory)]
        subprocess.run([*install, f"pyspark=={version}.*"], check=True)
        done.touch()
    return directory


def run(title: str, tests: Sequence[str] = TESTS, **variables: str) -> bool:
    """Runs tests. Returns whether all passed."""
    print(f"\n{title}", flush=True)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **variables}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", CHOSEN, *tests]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def run_version(version: str) -> bool:
    """Runs the tests with this version of PySpark, against Tidemill."""
    path = pyspark(version)
    found = next((one.version for one in metadata.distributions(name="pyspark", path=[str(path)])), version)
    tests = [*TESTS, MIRROR_TESTS[0]]
    return run(f"PySpark {found}, our broker", tests, PYTHONPATH=f"{path}{os.pathsep}{ROOT / 'src'}")


def run_kafka() -> bool:
    """Runs the tests with the installed PySpark, against Apache Kafka."""
    with tempfile.TemporaryDirectory() as directory:
        peer: Peer = Kafka(Path(directory) / "data", TRANSACTIONS)
        with peer:
            return run(
                f"PySpark {metadata.version('pyspark')}, Apache Kafka", TIDEMILL_TEST_BOOTSTRAP=peer.bootstrap
            )


def run_connector() -> bool:
    """Runs each case with Spark's connector and with that of Tidemill, against Apache Kafka."""
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
    """Runs the tests of killed loads with the installed PySpark, against Tidemill."""
    title = f"PySpark {metadata.version('pyspark')}, loads that are killed"
    return run(title, ["tests/pipeline/test_pipeline_killed_loads.py"])


def run_mirrors() -> bool:
    """Runs the tests of mirrors with the installed PySpark, against Tidemill."""
    return run(f"PySpark {metadata.version('pyspark')}, mirrors", MIRROR_TESTS)


def run_one(name: str) -> bool:
    """Runs the configuration with this name. Returns whether it passed."""
    runs = {KAFKA: run_kafka, CONNECTOR: run_connector, KILLS: run_kills, MIRRORS: run_mirrors}
    return runs[name]() if name in runs else run_version(name)


def main(wanted: list[str]) -> int:
    """Returns exit code 1 if a test failed, and 2 for an unknown name."""
    known = (*VERSIONS, KAFKA, CONNECTOR, KILLS, MIRRORS)
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
