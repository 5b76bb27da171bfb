"""What a mirror refuses before Spark starts."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tidemill.cli import mirror as mirror_command
from tidemill.client import Admin
from tidemill.client.errors import ClientError
from tidemill.model.errors import ConfigError
from tidemill.pipeline.mirror.checkpoint_clusters import CLUSTERS_FILE
from tidemill.pipeline.mirror.mirror_settings import MirrorJob, MirrorSource
from tidemill.pipeline.mirror.preflight_checks import checked_clusters, locked_checkpoint
from tidemill.pipeline.mirror.topic_filter import TopicFilter
from tidemill.testing.broker import Broker

TOPIC = "preflight"


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    """The addresses of three clusters: both sources have a topic of one name."""
    with Broker() as east, Broker() as north, Broker() as west:
        for source in (east, north):
            with Admin(source.bootstrap) as admin:
                admin.create_topic(TOPIC, 1)
        yield [east.bootstrap, north.bootstrap, west.bootstrap]


@contextmanager
def refusing_port() -> Iterator[str]:
    """The address of a port that refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def job_of(sources: list[str], target: str, folder: Path, **more: Any) -> MirrorJob:
    client: dict[str, str] = {"default.api.timeout.ms": "1000"}
    return MirrorJob(
        sources=[
            MirrorSource(f"s{number}", {"bootstrap.servers": address, **client})
            for number, address in enumerate(sources)
        ],
        target=MirrorSource("west", {"bootstrap.servers": target, **client}),
        checkpoint=str(folder / "checkpoint"),
        topics=TopicFilter(TOPIC),
        **more,
    )


def check(job: MirrorJob) -> None:
    with checked_clusters(job):
        pass


@pytest.mark.timeout(120)
@pytest.mark.parametrize("same_offsets", [True, False])
def test_a_job_whose_source_is_its_target_is_refused(
    addresses: list[str], tmp_path: Path, same_offsets: bool
) -> None:
    east, _, west = addresses
    with pytest.raises(ConfigError, match="the source s1 and the target are the same cluster"):
        check(job_of([east, west], west, tmp_path, same_offsets=same_offsets, prefixed=True))


@pytest.mark.timeout(120)
def test_two_sources_of_one_mirror_are_refused(addresses: list[str], tmp_path: Path) -> None:
    east, north, west = addresses
    with pytest.raises(ConfigError, match=f"the sources s1 and s0 both have {TOPIC}"):
        check(job_of([east, north], west, tmp_path))
    check(job_of([east, north], west, tmp_path, prefixed=True))
    check(job_of([east, north], west, tmp_path, same_offsets=False))


@pytest.mark.timeout(120)
def test_the_checkpoint_of_other_clusters_is_refused(addresses: list[str], tmp_path: Path) -> None:
    east, north, west = addresses
    check(job_of([east], west, tmp_path, same_offsets=False))
    assert (tmp_path / "checkpoint" / "s0" / CLUSTERS_FILE).exists()
    with pytest.raises(ConfigError, match="the source of s0 is the cluster"):
        check(job_of([north], west, tmp_path, same_offsets=False))
    with pytest.raises(ConfigError, match="the target of s0 is the cluster"):
        check(job_of([east], north, tmp_path, same_offsets=False))


@pytest.mark.timeout(120)
def test_a_source_that_cannot_be_reached_now_ends_only_a_job_that_does_not_wait(
    addresses: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, west = addresses
    with refusing_port() as closed:
        with caplog.at_level(logging.WARNING, "tidemill.pipeline"):
            check(job_of([closed], west, tmp_path))
        assert "the mirror of s0 begins without a cluster" in caplog.text
        with pytest.raises(ClientError):
            check(job_of([closed], west, tmp_path, trigger="available-now"))


def run_command(sources: list[str], target: str, folder: Path) -> str:
    given = [argument for source in sources for argument in ("--source", source)]
    result = CliRunner().invoke(
        mirror_command.mirror,
        [*given, "--target", target, "--allow", TOPIC, "--checkpoint", str(folder / "checkpoint")],
    )
    return f"{result.output}{result.exception}"


@pytest.mark.timeout(120)
def test_the_command_refuses_wrong_clusters_before_spark_starts(
    addresses: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_given: object, _work: Callable[[Any], Any], _on_interrupt: object) -> Any:
        raise AssertionError("Spark starts")

    monkeypatch.setattr(mirror_command, "with_spark", start)
    east, north, west = addresses
    assert "are the same cluster" in run_command([east], east, tmp_path)
    assert f"both have {TOPIC}" in run_command([east, north], west, tmp_path)
    with locked_checkpoint(str(tmp_path / "checkpoint")):
        assert "another mirror runs with the checkpoint" in run_command([east], west, tmp_path)
    assert "Spark starts" in run_command([east], west, tmp_path)
