"""Brokers for tests: start time, cleanup, fixtures."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from one_message import stored

from tidemill.client import Admin, Producer
from tidemill.model.errors import ConfigError
from tidemill.testing import Broker, BrokerFailed, StoreServer

pytest_plugins = ["pytester"]

START_S = 0.5
"""The goal is half a second on an idle machine."""


def send(broker: Broker, topic: str, *values: bytes) -> None:
    with Producer(broker.bootstrap) as producer:
        for value in values:
            producer.send(topic, value)


def test_a_broker_starts_in_less_than_half_a_second() -> None:
    # Byte code must be cached or written: a setting of the outer run would prevent that.
    with Broker(environment={"PYTHONDONTWRITEBYTECODE": ""}) as broker:
        times = [broker.started_in_s]
        for _ in range(4):
            broker.restart()
            times.append(broker.started_in_s)
    assert min(times) < START_S, times


def test_a_broker_keeps_its_data_and_address_after_a_stop_and_a_kill() -> None:
    with Broker() as broker:
        address = broker.bootstrap
        send(broker, "t", b"one")
        broker.restart()
        send(broker, "t", b"two")
        broker.kill()
        assert not broker.running
        broker.start()
        assert broker.bootstrap == address
        assert stored(broker.bootstrap, "t") == [b"one", b"two"]
        assert broker.stop() == 0
        assert "stopped" in broker.log


def test_starts_a_crashed_broker_again_and_leaves_no_file_open() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Broker() as broker, StoreServer() as store:
            broker.pause()
            for one in (broker, store):
                os.kill(one.pid, signal.SIGKILL)
                while one.running:
                    time.sleep(0.01)
                one.start()
            assert broker.is_answering
        gc.collect()
    assert [str(one.message) for one in caught] == []


def test_close_removes_processes_and_files() -> None:
    with Broker() as broker:
        directory, pid = Path(broker.data_dir), broker.pid
        assert directory.is_dir()
    assert not directory.parent.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_given_directory_is_kept(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path / "data") as broker:
        send(broker, "t", b"x")
    assert (tmp_path / "data" / "t-0").is_dir()
    with Broker(data_dir=tmp_path / "data") as broker:
        assert stored(broker.bootstrap, "t") == [b"x"]


def test_configuration_reaches_the_broker() -> None:
    with Broker(
        {"num.partitions": 3, "auto.create.topics.enable": False, "tidemill.metrics.port": 0}
    ) as broker:
        with Admin(broker.bootstrap) as admin:
            assert admin.create_topic("t").partitions == 3
        assert broker.metrics_port is not None
        assert broker.metrics_port > 0


def test_a_failed_start_reports_the_log() -> None:
    with (
        pytest.raises(BrokerFailed, match=r"(?s)exit code 1.*num\.partitions=none: allowed is"),
        Broker({"num.partitions": "none"}),
    ):
        pass


def test_a_broker_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom tidemill.testing import Broker\n"
        "broker = Broker(data_dir=sys.argv[1]).start()\nprint(broker.pid, flush=True)\nos._exit(1)"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data")], capture_output=True, text=True
    )
    pid = int(outcome.stdout)
    deadline = time.monotonic() + 20
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(pid)


def is_alive(pid: int) -> bool:
    """Whether the process is running; a zombie is not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_the_fixtures_work_in_a_users_suite(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def tidemill_config():
            return {"num.partitions": 2}
        """
    )
    pytester.makepyfile(
        """
        from tidemill.client import Admin, Producer

        seen = []

        def test_own_broker(tidemill_broker):
            with Admin(tidemill_broker.bootstrap) as admin:
                assert admin.create_topic("x").partitions == 2

        def test_topic(tidemill_session_broker, tidemill_topic):
            with Producer(tidemill_session_broker.bootstrap) as producer:
                assert producer.send(tidemill_topic, b"x").result(10).offset == 0
            seen.append((tidemill_session_broker.bootstrap, tidemill_topic))

        def test_fresh_topics(tidemill_session_broker, tidemill_topics, tidemill_topic):
            name = tidemill_topics(partitions=3, retention_ms=-1)
            with Admin(tidemill_session_broker.bootstrap) as admin:
                assert len(admin.describe_topic(name).partitions) == 3
                assert admin.topic_configs(name)["retention.ms"].value == "-1"
            seen.append((tidemill_session_broker.bootstrap, tidemill_topic))
            assert len({address for address, _ in seen}) == 1
            assert len({topic for _, topic in seen}) == 2
        """
    )
    outcome = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider")
    outcome.assert_outcomes(passed=3)


def test_the_plugin_imports_few_modules() -> None:
    code = (
        "import sys, pytest, tidemill\nbefore = set(sys.modules)\nimport tidemill.testing.plugin\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert outcome.stdout.split() == ["tidemill.testing", "tidemill.testing.plugin"]


def test_a_misspelt_key_fails_the_test() -> None:
    with pytest.raises(
        ConfigError, match=r"num\.partition is not a broker key.* did you mean num\.partitions\?"
    ):
        Broker({"num.partition": 3})
    with pytest.raises(ConfigError, match=r"retention\.ms is a topic key"):
        Broker({"retention.ms": 3})


def test_a_misspelt_key_of_the_fixtures_fails_their_tests(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def tidemill_config():
            return {"num.partition": 3}
        """
    )
    pytester.makepyfile("def test_it(tidemill_broker):\n    pass\n")
    outcome = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider")
    outcome.assert_outcomes(errors=1)
    outcome.stdout.fnmatch_lines(["*num.partition is not a broker key*did you mean num.partitions?*"])
