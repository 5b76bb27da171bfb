"""A ZooKeeper server from the jars that PySpark carries: what starts one, and whether it serves."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
from pathlib import Path

from tidemill.model.errors import TidemillError

JARS = ("zookeeper-*", "slf4j-api-*", "log4j-*", "metrics-core-*", "snappy-java-*", "netty-*", "commons-*")
SERVER = "org.apache.zookeeper.server.ZooKeeperServerMain"
MEMBER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
"""The main classes: a server alone, and one of an ensemble."""

JAVA_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m")
"""What lets a small server start soon."""

ANSWER_S = 5.0


class ZooKeeperMissing(TidemillError):
    """There is no PySpark, or no Java, on this machine."""


def class_path() -> str:
    """The jars that a server needs. Raises ZooKeeperMissing."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise ZooKeeperMissing("ZooKeeper's server comes with PySpark: pip install 'tidemill[pipeline]'")
    if shutil.which("java") is None:
        raise ZooKeeperMissing(
            "ZooKeeper's server needs Java, and no java is on the PATH: install a Java runtime, version 17 "
            "or newer"
        )
    jars = Path(spec.submodule_search_locations[0], "jars")
    found = [str(path) for pattern in JARS for path in sorted(jars.glob(f"{pattern}.jar"))]
    if not found:
        raise ZooKeeperMissing(
            f"there are no jars of ZooKeeper in {jars}: pip install --force-reinstall pyspark"
        )
    return ":".join(found)


def serves(host: str, port: int) -> bool:
    """Whether a server answers there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1) as one:
        one.settimeout(ANSWER_S)
        one.sendall(b"srvr")
        return b"Mode:" in one.recv(8192)
    return False
