"""Clients that need more than Python: their programs are installed below build/clients on first use."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidemill.testing import Broker

HERE = Path(__file__).parent
for folder in ("interchange", "server"):
    # kafka_peer and broker_cluster, for Apache Kafka and clusters of Tidemill.
    if str(HERE.parent / folder) not in sys.path:
        sys.path.append(str(HERE.parent / folder))
from kafka_peer import class_path  # noqa: E402
from secured_kafka import SecuredKafka  # noqa: E402

BUILD = HERE.parents[1] / "build" / "clients"
INSTALL_TIMEOUT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are for ``make clients``."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.clients)
            item.add_marker(pytest.mark.timeout(INSTALL_TIMEOUT_S + 300))


@pytest.fixture(scope="session")
def extra_broker() -> Iterator[Broker]:
    """The broker that these tests share."""
    with Broker() as broker:
        yield broker
        running, log = broker.running, broker.log
    assert running, f"the broker ended by itself:\n{log}"
    assert "Traceback" not in log, log


def need(program: str, how: str) -> None:
    """Skips the test if a program is missing; the text has the installation step."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed ({how})")


def install(directory: Path, stamp_of: Path, *command: str) -> None:
    """Runs ``command`` in ``directory`` unless that was done for this ``stamp_of``."""
    stamp = directory / ".ready"
    wanted = stamp_of.read_text("utf-8")
    if stamp.exists() and stamp.read_text("utf-8") == wanted:
        return
    outcome = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S
    )
    if outcome.returncode != 0:
        pytest.fail(f"{' '.join(command)} failed in {directory}:\n{outcome.stdout}{outcome.stderr}")
    stamp.write_text(wanted, "utf-8")


@pytest.fixture(scope="session")
def java_jars() -> str:
    """Installs Apache Kafka's client and tools with Maven; returns the class path."""
    need("java", "Debian: apt-get install default-jre-headless")
    need("mvn", "Debian: apt-get install maven")
    directory = BUILD / "java"
    directory.mkdir(parents=True, exist_ok=True)
    pom = HERE / "java" / "pom.xml"
    goal = "dependency:copy-dependencies"
    install(directory, pom, "mvn", "-q", "-B", "-f", str(pom), goal, f"-DoutputDirectory={directory}")
    return f"{directory}/*"


@pytest.fixture(scope="session")
def released() -> Callable[[str], Path]:
    """Installs a release of a Python package with pip, as ``name==version``, in a separate directory."""

    def bring(requirement: str) -> Path:
        directory = BUILD / "python" / requirement.replace("==", "-")
        directory.mkdir(parents=True, exist_ok=True)
        wanted = directory / "wanted.txt"
        wanted.write_text(f"{requirement}\n", "utf-8")
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--no-deps")
        install(directory, wanted, *pip, "--target", str(directory), "--requirement", str(wanted))
        return directory

    return bring


@pytest.fixture(scope="session")
def node_modules() -> Path:
    """Installs KafkaJS with npm."""
    need("node", "Debian: apt-get install nodejs")
    need("npm", "Debian: apt-get install npm")
    directory = BUILD / "js"
    directory.mkdir(parents=True, exist_ok=True)
    package = HERE / "js" / "package.json"
    shutil.copy(package, directory)
    install(directory, package, "npm", "install", "--no-audit", "--no-fund", "--silent")
    return directory / "node_modules"


@pytest.fixture(scope="session")
def oauth_modules() -> Path:
    """Installs an OAuth server with npm."""
    need("node", "Debian: apt-get install nodejs")
    need("npm", "Debian: apt-get install npm")
    directory = BUILD / "oauth"
    directory.mkdir(parents=True, exist_ok=True)
    package = HERE / "oauth" / "package.json"
    shutil.copy(package, directory)
    install(directory, package, "npm", "install", "--no-audit", "--no-fund", "--silent")
    return directory / "node_modules"


@pytest.fixture(scope="session")
def secured_kafka(oauth_modules: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """Apache Kafka with listeners that require a login."""
    need("keytool", "Debian: apt-get install openjdk-17-jre-headless")
    made = SecuredKafka(class_path("4.3.1"), oauth_modules, tmp_path_factory.mktemp("secured"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def go_tests() -> Path:
    """Builds the franz-go tests as a program; go downloads its modules."""
    need("go", "Debian: apt-get install golang")
    directory = BUILD / "go"
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "franz.test"
    command = ("go", "test", "-c", "-o", str(program), ".")
    outcome = subprocess.run(
        command, cwd=HERE / "go", capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S
    )
    if outcome.returncode != 0:
        pytest.fail(f"{' '.join(command)} failed in {HERE / 'go'}:\n{outcome.stdout}{outcome.stderr}")
    return program


@pytest.fixture(scope="session")
def spark_connector() -> tuple[Path, str]:
    """Installs a PySpark whose Kafka connector is in Maven Central, with pip and Maven, and the connector's
    jars.
    """
    need("java", "Debian: apt-get install openjdk-17-jre-headless")
    need("mvn", "Debian: apt-get install maven")
    python, jars = BUILD / "spark" / "python", BUILD / "spark" / "jars"
    python.mkdir(parents=True, exist_ok=True)
    jars.mkdir(parents=True, exist_ok=True)
    wanted = HERE / "spark" / "requirements.txt"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--upgrade")
    install(python, wanted, *pip, "--target", str(python), "--requirement", str(wanted))
    pom = HERE / "spark" / "pom.xml"
    goal = "dependency:copy-dependencies"
    install(jars, pom, "mvn", "-q", "-B", "-f", str(pom), goal, f"-DoutputDirectory={jars}")
    return python, ",".join(str(jar) for jar in sorted(jars.glob("*.jar")))
