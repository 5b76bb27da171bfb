"""Spark's reads and writes on an Apache Kafka that requires a login, and the absence of secrets in Spark's
output.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from secured_kafka import (
    KEY_PASSWORD,
    OAUTH_MODULE,
    PASSWORD,
    PLAIN_MODULE,
    SCRAM_MODULE,
    STORE_PASSWORD,
    USER,
    SecuredKafka,
    jaas,
)

from tidemill.client import Admin, Producer

PROGRAM = Path(__file__).parent / "spark" / "secured.py"
SOURCES = Path(__file__).parents[2] / "src"
WRONG = "wr0ng-password"
TIMEOUT_S = 800


def options(kafka: SecuredKafka, listener: str = "LOGIN", **more: str) -> dict[str, str]:
    """Returns options of the format for TLS to a listener; ``more`` has ``__`` for dots."""
    keys = {
        "bootstrap.servers": kafka.bootstrap(listener),
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": kafka.files.truststore,
        "ssl.truststore.password": STORE_PASSWORD,
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return {f"kafka.{name}": value for name, value in keys.items()}


def logins(kafka: SecuredKafka) -> dict[str, dict[str, str]]:
    line = jaas(OAUTH_MODULE, clientId="tidemill", clientSecret="tidemill-client-secret", scope="records")
    return {
        "plain": options(
            kafka,
            sasl__mechanism="PLAIN",
            sasl__jaas__config=jaas(PLAIN_MODULE, username=USER, password=PASSWORD),
        ),
        "scram": options(
            kafka,
            sasl__mechanism="SCRAM-SHA-512",
            sasl__jaas__config=jaas(SCRAM_MODULE, username=USER, password=PASSWORD),
        ),
        "credentials": options(
            kafka,
            sasl__mechanism="OAUTHBEARER",
            sasl__jaas__config=line,
            sasl__oauthbearer__token__endpoint__url=kafka.oauth.clear_url,
        ),
        "provider": options(
            kafka, sasl__mechanism="OAUTHBEARER", sasl__oauth__token__provider="token_provider:token"
        ),
        "certificate": options(
            kafka,
            "MUTUAL",
            security__protocol="SSL",
            ssl__keystore__key=kafka.files.client.encrypted_key_pem(KEY_PASSWORD),
            ssl__keystore__certificate__chain=kafka.files.client.pem,
            ssl__key__password=KEY_PASSWORD,
        ),
    }


@pytest.fixture(scope="module")
def told(
    secured_kafka: SecuredKafka, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], str, Path]:
    """Runs the program; returns its result, its output and its directory."""
    directory = tmp_path_factory.mktemp("secured-spark")
    (directory / "events").mkdir()
    topics = {name: [f"{name}-{uuid.uuid4().hex[:8]}" for _ in range(2)] for name in logins(secured_kafka)}
    with Admin(secured_kafka.bootstrap("INSIDE")) as admin:
        for pair in topics.values():
            for topic in pair:
                admin.create_topic(topic, 2)
    wrong = jaas(PLAIN_MODULE, username=USER, password=WRONG)
    given = {
        "logins": logins(secured_kafka),
        "topics": topics,
        "wrong": options(secured_kafka, sasl__mechanism="PLAIN", sasl__jaas__config=wrong),
        "directory": str(directory),
    }
    authorization = base64.b64encode(b"tidemill:tidemill-client-secret").decode()
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(SOURCES), str(PROGRAM.parent)]),
            "PYSPARK_PYTHON": sys.executable,
            "TEST_TOKEN_URL": secured_kafka.oauth.clear_url,
            "TEST_TOKEN_AUTHORIZATION": f"Basic {authorization}",
        },
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr, directory


@pytest.mark.parametrize("name", ["plain", "scram", "credentials", "provider", "certificate"])
def test_spark_writes_reads_and_streams_after_every_login(
    told: tuple[dict[str, Any], str, Path], name: str
) -> None:
    assert told[0][name] == {"values": list(range(100)), "copied": 100}


def test_a_refused_login_ends_the_query_with_the_next_step(
    told: tuple[dict[str, Any], str, Path],
) -> None:
    text = told[0]["wrong"]
    assert "refuses the login by PLAIN" in text
    assert f"check user '{USER}' and its password" in text
    assert WRONG not in text


def test_no_secret_is_in_plans_event_logs_checkpoints_and_output(
    secured_kafka: SecuredKafka, told: tuple[dict[str, Any], str, Path]
) -> None:
    results, output, directory = told
    texts = {"the output": output, "plans and progress": "\n".join(results["shown"])}
    for folder in ("events", "checkpoint"):
        for path in (directory / folder).rglob("*"):
            if path.is_file() and not path.name.endswith(".crc"):
                texts[str(path)] = path.read_text(errors="replace")
    assert any("SparkListenerSQLExecutionStart" in text for text in texts.values())
    assert any('"version": 1' in text for text in texts.values())  # the positions in a checkpoint
    key = secured_kafka.files.client.key_pem.splitlines()[2]
    # In logs, backslashes precede the quotes of the password.
    password = r'alice, [\\"]*secret'
    others = (STORE_PASSWORD, KEY_PASSWORD, "tidemill-client-secret", WRONG, key)
    for where, text in texts.items():
        for secret in (password, *map(re.escape, others)):
            assert re.search(secret, text) is None, f"{secret} is in {where}"


def test_pipeline_load_reads_the_file_of_javas_tools_and_writes_no_secret(
    secured_kafka: SecuredKafka, tmp_path: Path
) -> None:
    topic = f"load-{uuid.uuid4().hex[:8]}"
    with Admin(secured_kafka.bootstrap("INSIDE")) as admin:
        admin.create_topic(topic, 2)
    with Producer(secured_kafka.bootstrap("INSIDE")) as producer:
        producer.send_batch(topic, [b'{"n": %d}' % number for number in range(50)]).result(60)
    line = jaas(SCRAM_MODULE, username=USER, password=PASSWORD)
    lines = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.jaas.config": line.replace("\\", "\\\\"),
        "ssl.truststore.location": secured_kafka.files.truststore,
        "ssl.truststore.password": STORE_PASSWORD,
    }
    (tmp_path / "client.properties").write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    output = tmp_path / "rows"
    command = [sys.executable, "-m", "tidemill", "pipeline", "load", "-b", secured_kafka.bootstrap("LOGIN")]
    command += ["--command-config", "client.properties", "-t", topic, "-o", str(output), "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout)["rows"] == 50
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "client.properties"]
    assert any(path.suffix == ".parquet" for path in files)
    for text in (done.stdout, done.stderr, *(path.read_text(errors="replace") for path in files)):
        assert "secret" not in text
        assert STORE_PASSWORD not in text
