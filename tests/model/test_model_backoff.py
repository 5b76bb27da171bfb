"""The pauses between attempts, and the loop that repeats an attempt."""

from __future__ import annotations

import pytest

from tidemill.model.backoff import Backoff, retry
from tidemill.model.errors import KafkaError, StorageError


def test_each_pause_is_twice_the_one_before_up_to_a_limit() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next_s() == 0.5


async def test_retry_repeats_an_attempt_until_it_succeeds() -> None:
    problems = [StorageError("full"), StorageError("still full")]
    reported: list[tuple[str, float]] = []

    async def attempt() -> int:
        if problems:
            raise problems.pop(0)
        return 7

    result = await retry(
        attempt,
        StorageError,
        Backoff(0.001, 1.0),
        lambda problem, pause_s: reported.append((str(problem), pause_s)),
    )
    assert result == 7
    assert reported == [("full", 0.001), ("still full", 0.002)]


async def test_retry_raises_other_errors() -> None:
    async def attempt() -> None:
        raise KafkaError("another error")

    with pytest.raises(KafkaError, match="another error"):
        await retry(attempt, StorageError, Backoff(0.001, 1.0), lambda _problem, _pause_s: None)
