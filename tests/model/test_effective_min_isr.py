"""The number of in-sync replicas that a commit needs."""

from __future__ import annotations

import pytest

from tidemill.model.effective_min_isr import effective_min_isr


@pytest.mark.parametrize(
    ("configured", "replicas", "adding", "expected"),
    [
        pytest.param(2, 3, 0, 2, id="enough replicas"),
        pytest.param(2, 1, 0, 1, id="fewer replicas"),
        pytest.param(2, 3, 2, 1, id="added replicas do not count"),
        pytest.param(2, 2, 2, 2, id="only added replicas"),
        pytest.param(2, 0, 0, 2, id="no replicas yet"),
    ],
)
def test_a_commit_needs_min_insync_replicas_or_all_if_there_are_fewer(
    configured: int, replicas: int, adding: int, expected: int
) -> None:
    assert effective_min_isr(configured, replicas, adding) == expected
