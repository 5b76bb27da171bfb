"""The log lines of a controller about partitions without a leader, over a real store."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest
from test_handlers_moves import brokers_in

from tidemill.controller import leaderless_report
from tidemill.controller.leader_election import default_policy
from tidemill.coordination.cluster_image import ClusterImage, Delta
from tidemill.coordination.topic_image import PartitionImage, TopicImage
from tidemill.model.event_loop_slices import run_in_slices


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """Level and text of what was logged of leaderless partitions since the last call."""
    found = [
        (one.levelname, one.getMessage()) for one in caplog.records if one.name == leaderless_report.__name__
    ]
    caplog.clear()
    return found


ADVICE = (
    "If that is not possible: 'tidemill topic elect TOPIC --unclean' elects the longest log of the live "
    "replicas, and loses other records"
)


async def test_partitions_without_a_leader_are_one_warning_and_their_election_is_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have(*[[1]] * 6, [7])
        lines(caplog)
        await brokers.go(1)
        assert lines(caplog) == [
            (
                "WARNING",
                "6 partitions have no leader, as no eligible replica is available: t-0, t-1, t-2 and 3 "
                f"more; waiting for brokers [1]: start them. {ADVICE}",
            )
        ]
        await brokers.go(2)
        assert lines(caplog) == [], "it changes nothing for them"
        await brokers.come(1)
        assert lines(caplog) == [("INFO", "6 partitions have a leader again: t-0, t-1, t-2 and 3 more")]


async def test_created_and_deleted_partitions_are_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([1], [7])
        await brokers.controller.admin_manager.delete_topics(["t"])
        assert lines(caplog) == []


async def test_a_new_controller_logs_the_partitions_without_a_leader(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with brokers_in(tmp_path) as brokers:
        await brokers.have([1])
        await brokers.go(1)
        lines(caplog)
        brokers.controller.election.resign()
        await brokers.controller.context.activate(dead=7)
        await asyncio.sleep(0.05)
        assert lines(caplog) == [
            (
                "WARNING",
                "1 partition has no leader, as no eligible replica is available: t-0; waiting for "
                f"brokers [1]: start them. {ADVICE}",
            )
        ]


async def test_leaderless_partitions_of_a_starting_cluster_are_a_warning_after_a_delay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaderless_report, "CLUSTER_START_S", 0.2)

    async with brokers_in(tmp_path) as brokers:
        await brokers.have([1], [2])
        await brokers.go(1, 2)
        lines(caplog)
        brokers.controller.election.resign()
        # As in a process that was started just now.
        brokers.controller.context.known_image = ClusterImage
        await brokers.controller.context.activate(dead=7)
        await asyncio.sleep(0.05)
        assert lines(caplog) == []
        await brokers.come(2)
        assert lines(caplog) == [("INFO", "1 partition has a leader again: t-1")]
        await asyncio.sleep(0.3)
        ((level, text),) = lines(caplog)
        assert level == "WARNING"
        assert text.startswith("1 partition has no leader, as no eligible replica is available: t-0;")


def test_10000_partitions_without_a_leader_are_one_line_and_do_not_block_the_event_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    led = tuple(PartitionImage(number, 1, 0, [1], [1]) for number in range(10_000))
    waiting = tuple(PartitionImage(number, -1, 1, [1], [], 1, elr=[1]) for number in range(10_000))
    old, new = (TopicImage("t", b"t" * 16, partitions, {}) for partitions in (led, waiting))
    image = ClusterImage("c", 7, 1, {}, {"t": new})
    delta = Delta(image, image, changed=[(old, new)])
    report = leaderless_report.LeaderlessReport(lambda: image, default_policy, frozenset)
    longest_s = 0.0

    async def pause() -> None:
        nonlocal began, longest_s
        longest_s = max(longest_s, time.perf_counter() - began)
        began = time.perf_counter()

    began = time.perf_counter()
    asyncio.run(run_in_slices(report.record_in_slices(delta), pause))
    ((level, text),) = lines(caplog)
    assert level == "WARNING"
    assert "10000 partitions have no leader" in text
    assert "t-0, t-1, t-2 and 9997 more; waiting for brokers [1]" in text
    assert longest_s < 0.05
