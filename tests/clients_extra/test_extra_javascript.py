"""KafkaJS: the tests are in js/kafkajs.test.js."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tidemill.testing import Broker

SCRIPT = Path(__file__).parent / "js" / "kafkajs.test.js"


def test_kafkajs_passes_its_tests(extra_broker: Broker, node_modules: Path) -> None:
    outcome = subprocess.run(
        ["node", "--test", "--test-reporter=spec", str(SCRIPT)],
        env={
            **os.environ,
            "BOOTSTRAP": extra_broker.bootstrap,
            "NODE_PATH": str(node_modules),
            "KAFKAJS_NO_PARTITIONER_WARNING": "1",
        },
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "pass 11" in outcome.stdout
